//! Runs a case under either body.

use std::future::Future;
use std::net::SocketAddr;
use std::path::PathBuf;

use highwater::rt::{ExecutorIndex, RingPlan, run_ring};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Body {
    Ring,
}

/// What a case gets: a directory of its own and an address to bind with port 0.
#[derive(Clone, Debug)]
pub struct Env {
    pub dir: PathBuf,
    pub addr: SocketAddr,
    pub body: Body,
}

/// Runs `main` on one shard.
pub fn run<M, F>(body: Body, main: M)
where
    M: Fn(Env) -> F + Clone + Send + 'static,
    F: Future<Output = ()> + 'static,
{
    run_shards(body, 1, move |index, env| {
        let main = main.clone();
        async move {
            if !index.is_control() {
                main(env).await;
            }
        }
    });
}

/// Runs `main` on `shards` shards and the control executor.
pub fn run_shards<M, F>(body: Body, shards: usize, main: M)
where
    M: Fn(ExecutorIndex, Env) -> F + Clone + Send + 'static,
    F: Future<Output = ()> + 'static,
{
    match body {
        Body::Ring => {
            let dir = tempfile::tempdir().expect("temporary directory");
            let env = Env {
                dir: dir.path().to_owned(),
                addr: SocketAddr::from(([127, 0, 0, 1], 0)),
                body,
            };
            let plan = RingPlan {
                shards,
                ..RingPlan::default()
            };
            run_ring(plan, move |index| main(index, env.clone())).expect("all executors end well");
        }
    }
}

/// Makes a test of each body out of every async function named.
macro_rules! on_both_bodies {
    ($($case:ident),+ $(,)?) => {
        mod ring {
            $(#[test] fn $case() {
                crate::support::run(crate::support::Body::Ring, super::$case);
            })+
        }
    };
}
pub(crate) use on_both_bodies;
