//! Producer ids of one shard: a block from the controller, given out one by one. Ids of a block
//! that a crash leaves unused are never given out again.

use super::Shard;
use crate::rt::sync::Semaphore;
use crate::wire::ErrorCode;
use crate::wire::messages::allocate_producer_ids_request::AllocateProducerIdsRequest;
use std::cell::Cell;
use std::rc::Rc;

/// See the module's words.
pub struct ProducerIds {
    next: Cell<i64>,
    end: Cell<i64>,
    /// One request for a block at a time.
    turn: Semaphore,
}

impl Default for ProducerIds {
    fn default() -> Self {
        ProducerIds {
            next: Cell::new(0),
            end: Cell::new(0),
            turn: Semaphore::new(1),
        }
    }
}

impl ProducerIds {
    fn take(&self) -> Option<i64> {
        let next = self.next.get();
        (next < self.end.get()).then(|| {
            self.next.set(next + 1);
            next
        })
    }
}

impl Shard {
    /// A producer id that no other producer of the cluster has.
    pub async fn next_producer_id(self: &Rc<Self>) -> Result<i64, ErrorCode> {
        loop {
            if let Some(id) = self.producer_ids.take() {
                return Ok(id);
            }
            let _turn = self.producer_ids.turn.acquire(1).await;
            if self.producer_ids.next.get() < self.producer_ids.end.get() {
                continue;
            }
            let config = &self.node.config;
            let request = AllocateProducerIdsRequest {
                broker_id: config.node_id.0,
                broker_epoch: self.broker_epoch(),
                ..Default::default()
            };
            let block = self.ask_controller(request).await?;
            if block.error_code != ErrorCode::NONE.0 {
                return Err(ErrorCode::COORDINATOR_LOAD_IN_PROGRESS);
            }
            let first = block.producer_id_start;
            self.producer_ids.next.set(first);
            self.producer_ids
                .end
                .set(first + i64::from(block.producer_id_len));
        }
    }
}
