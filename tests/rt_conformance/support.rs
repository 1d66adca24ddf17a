//! Runs a case under either body.

use std::future::Future;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use highwater::rt::sim::World;
use highwater::rt::{ExecutorIndex, RingPlan, fs, run_ring};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Body {
    Ring,
    /// With this seed.
    Sim(u64),
}

/// What a case gets: a directory of its own and an address to bind with port 0.
#[derive(Clone, Debug)]
pub struct Env {
    pub dir: PathBuf,
    pub addr: SocketAddr,
}

/// Seeds per simulated case: other orders, other delays.
pub const SEEDS: u64 = 20;
/// Virtual time in which every case must end.
const SIM_LIMIT: Duration = Duration::from_secs(120);

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
            };
            let plan = RingPlan {
                shards,
                ..RingPlan::default()
            };
            run_ring(plan, move |index| main(index, env.clone())).expect("all executors end well");
        }
        Body::Sim(seed) => {
            let world = World::new(seed);
            let node = world.add_node("node");
            let env = Env {
                dir: PathBuf::from("/data"),
                addr: SocketAddr::from((node.ip(), 0)),
            };
            node.start(shards, move |index| {
                let (main, env) = (main.clone(), env.clone());
                async move {
                    fs::create_dir_all(&env.dir).await.expect("a healthy disk");
                    main(index, env).await;
                }
            });
            let ended = world.run_to_end(SIM_LIMIT);
            assert!(
                ended,
                "seed {seed}: not done in {SIM_LIMIT:?} of virtual time"
            );
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
        mod sim {
            $(#[test] fn $case() {
                for seed in 0..crate::support::SEEDS {
                    crate::support::run(crate::support::Body::Sim(seed), super::$case);
                }
            })+
        }
    };
}
pub(crate) use on_both_bodies;
