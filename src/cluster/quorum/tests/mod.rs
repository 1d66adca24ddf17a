//! The quorum in the simulator: controllers that crash, lose power, lose each other and run out of
//! space, and what must hold all the same.

mod kit;
mod worlds;
