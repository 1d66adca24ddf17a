//! One step of the shard state machine: the clock of the command and the places where it may
//! leave deadlines, appends and answers. Borrowed from the shard for the length of one call; it
//! owns no state of groups.

use std::time::Duration;

use smallvec::SmallVec;

use super::appends::{Appends, Continuation};
use super::effects::{
    AppendId, Clock, CoordinatorRecord, Effect, Effects, Producer, ReplyToken, Response,
};
use super::settings::{GroupLimits, GroupSettings};
use super::timers::Timers;
use crate::rt::Instant;

pub(super) struct Step<'a> {
    pub(super) settings: &'a GroupSettings,
    pub(super) limits: &'a GroupLimits,
    pub(super) clock: Clock,
    pub(super) timers: &'a mut Timers,
    pub(super) appends: &'a mut Appends,
    pub(super) out: &'a mut Effects,
    /// Appends that this step has asked for.
    pub(super) asked: SmallVec<[AppendId; 1]>,
}

impl Step<'_> {
    pub(super) fn after_ms(&self, ms: i32) -> Instant {
        self.clock.now + Duration::from_millis(u64::from(ms.max(0) as u32))
    }

    pub(super) fn reply(&mut self, token: ReplyToken, response: Response) {
        self.out.push(Effect::Reply(token, response));
    }

    pub(super) fn append(
        &mut self,
        records: Vec<CoordinatorRecord>,
        producer: Option<Producer>,
        then: Continuation,
    ) -> AppendId {
        assert!(
            !records.is_empty(),
            "an append without records would wait for nothing"
        );
        let id = self.appends.begin(then);
        self.out.push(Effect::Append {
            records,
            producer,
            then: id,
        });
        self.asked.push(id);
        id
    }

    /// Answers once what this step appends is in the log, or at once if it appends nothing.
    pub(super) fn reply_when_stored(&mut self, token: ReplyToken, response: Response) {
        if self.asked.is_empty() {
            self.reply(token, response);
        } else {
            self.appends.hold(&self.asked, token, response);
        }
    }
}
