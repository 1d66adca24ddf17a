//! The durability lab: what each row of the durability table costs, and what it loses when
//! processes are killed and when the power goes. Nothing here is a guess: processes are killed for
//! real, power is lost on the simulator's disk ([`crate::rt::sim`]) under whole brokers with the
//! same settings but for the sizes of their journal and their caches, and every loss is counted,
//! acknowledged records against those that can be read.
//!
//! * `matrix` the rows: acks, brokers, segment I/O, flush; their settings;
//! * `measure` what a row costs under load; `cost` what brokers spent; `tidy` the end of a row's
//!   files;
//! * `book` what producers were told, and the judgement; `feed` numbered records and how they are
//!   read back, the same for real and for simulated brokers;
//! * `kill` kill -9 of real brokers; `hosts` brokers in a simulated world; `power` power losses;
//! * `losses` what is stated of many events; `document` and `meaning` of a row;
//! * `page` and `picture` all of it for a browser;
//! * `run` one part after the other; `clock` how long each may take.

mod book;
mod clock;
mod cost;
mod document;
mod feed;
mod hosts;
mod kill;
mod losses;
mod matrix;
mod meaning;
mod measure;
mod page;
mod picture;
mod power;
mod run;
mod tidy;

pub use clock::Clock;
pub use document::{Document, FixedRate, LossSet, Percentiles, RowResult, Throughput};
pub use losses::{Losses, Source};
pub use matrix::{Filter, Flush, Row, System, highwater_rows, kafka_rows};
pub use meaning::time;
pub use measure::paced_samples;
pub use page::page;
pub use power::{PowerPlan, PowerReport, simulate};
pub use run::{LabPlan, run_lab};
