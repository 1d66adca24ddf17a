//! The group coordinators of one shard: one state machine for each partition of
//! `__consumer_offsets` that the shard owns, loaded by reading that partition. Carries out what
//! the state machine asks for: answers, appends, and being woken when time is up. Decides nothing
//! about groups itself.

use super::Shard;
use super::mesh::Place;
use crate::config::BrokerConfig;
use crate::coordinator::{Clock, GroupCoordinatorShard, GroupLimits, GroupSettings};
use crate::types::PartitionId;
use std::cell::RefCell;
use std::rc::Rc;
