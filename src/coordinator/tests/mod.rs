//! Tests of the coordinator as a whole, against a log in memory and a clock that is an argument.

mod histories;
mod kit;
mod membership;
mod offsets;
mod statics;
mod storage;
mod transactions;
