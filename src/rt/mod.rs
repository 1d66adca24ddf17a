//! The one seam to the world: executors, files, sockets, channels, clock, randomness. The only
//! room that names glommio.
//!
//! There are two bodies behind one API. The *ring* body is glommio: one executor per thread, real
//! files and sockets. The *simulated* body runs any number of executors in one thread on virtual
//! time from one seed. Which body serves a call is decided by the executor that makes it; no type
//! parameter leaks to the callers. Nothing here knows Kafka.
//!
//! | part | what it gives | runs on |
//! |---|---|---|
//! | [`spawn`], [`Task`], [`yield_now`] | tasks of one executor | any executor |
//! | [`sleep`], [`timeout`], [`now`], [`wall_ms`] | clock and timers | any executor (`now`, `wall_ms`: any thread) |
//! | [`sync`] | oneshot, event, notify, semaphore, queue | within one executor |
//! | [`lane`] | bounded single-producer single-consumer channel, one-shot reply | across executors |
//! | [`net`], [`fs`] | TCP and files | any executor |
//! | [`blocking`] | CPU-heavy or blocking work, off the executor | pool threads |
//! | [`sim`] | a world of simulated processes | test thread |
//! | [`run_ring`] | starts the shards and the control executor on real threads | main thread |

mod blocking;
mod current;
mod executor;
pub mod fs;
pub mod lane;
pub mod net;
mod random;
mod ring;
mod select;
pub mod sim;
pub mod sync;
mod task;
mod time;
mod turn;

/// What the ring body's runtime calls itself in `tracing` events.
pub const LOG_TARGET: &str = "glommio";

pub use blocking::{BlockingTask, blocking, spawn_blocking};
pub use executor::{ExecutorIndex, RingPlan, RunError, run_ring};
pub use random::{fill_random, random_below, random_u64};
pub use select::{Either2, Either3, join_all, select2, select3};
pub use task::{Task, spawn, yield_now};
pub use time::{Elapsed, Instant, now, sleep, sleep_until, sleep_until_opt, timeout, wall_ms};
pub use turn::{STEP_BYTES, Turn, turn};
