//! A record's way into every in-sync replica of a partition, out of the hops that were told. Pure.
//! Says which hop is missing, and which came before what it must wait for.

use super::story::Flaw;
use crate::observe::hop::{Hop, What};

/// The partition and who keeps it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    pub topic: String,
    pub partition: i32,
    pub leader: i32,
    /// The in-sync replicas without the leader.
    pub followers: Vec<i32>,
}

/// Hops in the order of their times.
pub(super) struct Told<'a>(pub(super) &'a [Hop]);

impl<'a> Told<'a> {
    /// The first hop for which `is` holds.
    pub(super) fn first(
        &self,
        what: impl FnOnce() -> String,
        is: impl Fn(&Hop) -> bool,
    ) -> Result<&'a Hop, Flaw> {
        let found = self.0.iter().find(|hop| is(hop));
        found.ok_or_else(|| Flaw::Missing(what()))
    }

    /// The last hop before `end` for which `is` holds.
    pub(super) fn last_before(
        &self,
        end: &Hop,
        what: impl FnOnce() -> String,
        is: impl Fn(&Hop) -> bool,
    ) -> Result<&'a Hop, Flaw> {
        let found = self.0.iter().rfind(|hop| hop.at <= end.at && is(hop));
        found.ok_or_else(|| Flaw::Missing(what()))
    }
}

/// `later` must not have been before `earlier`.
pub(super) fn in_order(
    earlier: &Hop,
    later: &Hop,
    why: impl FnOnce() -> String,
) -> Result<(), Flaw> {
    match earlier.at <= later.at {
        true => Ok(()),
        false => {
            let early = earlier.at.since(later.at).as_nanos() / 1000;
            Err(Flaw::Wrong(format!("{} ({early} µs too early)", why())))
        }
    }
}

/// See the module's words.
#[derive(Debug)]
pub(super) struct Journey<'a> {
    pub(super) append: &'a Hop,
    pub(super) copies: Vec<Copy<'a>>,
    pub(super) committed: &'a Hop,
}

/// How one follower got the record.
#[derive(Debug)]
pub(super) struct Copy<'a> {
    /// Its fetch from the record's offset, which waits at the leader.
    pub(super) pull: &'a Hop,
    pub(super) served: &'a Hop,
    pub(super) append: &'a Hop,
    /// Its next fetch: from behind the record, so it has it.
    pub(super) confirmed: &'a Hop,
}

impl<'a> Journey<'a> {
    /// The way of the record that the leader appended at `append`.
    pub(super) fn find(told: &Told<'a>, kept: &Kept, append: &'a Hop) -> Result<Journey<'a>, Flaw> {
        let offset = append.offset;
        let name = format!("{}-{}", kept.topic, kept.partition);
        if append.log_end != offset + 1 || append.high_watermark > offset {
            return Err(Flaw::Wrong(format!(
                "after the append of one record at offset {offset} of {name} the log end is {} and the high watermark {}",
                append.log_end, append.high_watermark
            )));
        }
        let here = |hop: &Hop| hop.topic == kept.topic && hop.partition == kept.partition;
        let at_leader = |hop: &Hop| here(hop) && hop.node == kept.leader;
        let mut copies = Vec::new();
        for follower in &kept.followers {
            let of = |hop: &Hop| at_leader(hop) && hop.peer == *follower;
            let served = told.first(
                || format!("the answer with offset {offset} of {name} to broker {follower}"),
                |hop| {
                    let with_it = hop.offset == offset && hop.bytes > 0;
                    hop.what == What::FetchAnswered && of(hop) && with_it
                },
            )?;
            in_order(append, served, || {
                format!(
                    "broker {follower} was given offset {offset} of {name} before the leader had appended it"
                )
            })?;
            let pull = told.last_before(
                served,
                || format!("the fetch of broker {follower} from offset {offset} of {name}"),
                |hop| hop.what == What::FetchReceived && of(hop) && hop.offset == offset,
            )?;
            let copied = told.first(
                || format!("the append of offset {offset} of {name} on broker {follower}"),
                |hop| {
                    let it = hop.node == *follower && hop.offset == offset;
                    hop.what == What::FollowerAppend && here(hop) && it
                },
            )?;
            in_order(served, copied, || {
                format!(
                    "broker {follower} appended offset {offset} of {name} before it was given it"
                )
            })?;
            let next = offset + 1;
            let confirmed = told.first(
                || format!("the fetch of broker {follower} from offset {next} of {name}"),
                |hop| hop.what == What::FetchReceived && of(hop) && hop.offset == next,
            )?;
            in_order(copied, confirmed, || {
                format!(
                    "broker {follower} fetched from offset {next} of {name} before it had appended what is before it"
                )
            })?;
            copies.push(Copy {
                pull,
                served,
                append: copied,
                confirmed,
            });
        }
        let committed = told.first(
            || format!("the high watermark of {name} moving to {}", offset + 1),
            |hop| hop.what == What::HighWatermark && at_leader(hop) && hop.high_watermark > offset,
        )?;
        for copy in &copies {
            in_order(copy.confirmed, committed, || {
                format!(
                    "the high watermark of {name} moved to {} before broker {} had told that it has offset {offset}",
                    committed.high_watermark, copy.append.node
                )
            })?;
        }
        Ok(Journey {
            append,
            copies,
            committed,
        })
    }
}
