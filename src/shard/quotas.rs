//! Client quotas of a shard: how many bytes its clients have produced and consumed of late, and for
//! how long a connection is not read on. Runs on the shard. Which quota holds for a client is
//! decided in [`crate::cluster::client_quotas`].
//!
//! A quota is the broker's, and a client may have connections on several shards. Each shard counts
//! what it sees, and hears once a second what the others have counted in their windows. So a
//! client of `n` shards may exceed its quota by what the other `n - 1` take from it within that
//! second; the windows, eleven seconds long, remember it, and it is paid for in the next one.

use super::Shard;
use super::mesh::LocalFuture;
use crate::cluster::Image;
use crate::cluster::client_quotas::{CONSUMER_BYTE_RATE, PRODUCER_BYTE_RATE, QuotaTable, Sharer};
use crate::config::BrokerConfig;
use crate::rt::{self, Instant};
use ahash::AHashMap;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

/// Who shares quotas that are counted apart; the rest is counted as one. Client ids are anybody's
/// choice: a hundred thousand of them must not cost memory for ever.
const SHARERS_MAX: usize = 10_000;
/// How often the shards tell each other what they have counted.
const EXCHANGE: Duration = Duration::from_secs(1);
/// The user of every connection while there is no authentication.
const ANONYMOUS: &str = "ANONYMOUS";

/// What a quota counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counted {
    Produced,
    Consumed,
}

/// `quota.window.size.seconds` and `quota.window.num`.
#[derive(Clone, Copy, Debug)]
struct Windows {
    each: Duration,
    count: u32,
}

/// Bytes by window.
#[derive(Debug, Default)]
struct Meter {
    windows: VecDeque<(Instant, u64)>,
}

impl Meter {
    fn record(&mut self, bytes: u64, now: Instant, of: Windows) {
        self.forget(now, of);
        match self.windows.back_mut() {
            Some((begun, sum)) if now.since(*begun) < of.each => *sum += bytes,
            _ => self.windows.push_back((now, bytes)),
        }
    }

    fn forget(&mut self, now: Instant, of: Windows) {
        while let Some((begun, _)) = self.windows.front()
            && now.since(*begun) >= of.each * of.count
        {
            self.windows.pop_front();
        }
    }

    fn bytes(&self) -> u64 {
        self.windows.iter().map(|(_, bytes)| bytes).sum()
    }

    /// How long to wait until the rate, with what `others` have counted, is down to `limit`. As in
    /// Kafka it is taken over all whole windows also while fewer have passed.
    fn throttle(&self, limit: f64, others: u64, now: Instant, of: Windows) -> Duration {
        let Some((oldest, _)) = self.windows.front() else {
            return Duration::ZERO;
        };
        let whole = of.each * of.count.saturating_sub(1).max(1);
        let elapsed = now.since(*oldest).max(whole).as_secs_f64();
        let rate = (self.bytes() + others) as f64 / elapsed;
        if rate <= limit {
            return Duration::ZERO;
        }
        // An answer has room for so much.
        let seconds = (rate - limit) / limit * elapsed;
        Duration::from_secs_f64(seconds.min(f64::from(i32::MAX) / 1000.0))
    }
}

/// One quota's side of things.
#[derive(Default)]
struct Side {
    table: QuotaTable,
    meters: AHashMap<Sharer, Meter>,
    /// What the other shards have in their windows.
    others: AHashMap<Sharer, u64>,
}

impl Side {
    fn meter(&mut self, sharer: &Sharer, now: Instant, of: Windows) -> (Sharer, &mut Meter) {
        if !self.meters.contains_key(sharer) && self.meters.len() >= SHARERS_MAX {
            self.meters.retain(|_, meter| {
                meter.forget(now, of);
                !meter.windows.is_empty()
            });
        }
        let known = self.meters.contains_key(sharer);
        let counted = match known || self.meters.len() < SHARERS_MAX {
            true => sharer.clone(),
            false => Sharer {
                user: Default::default(),
                client: Default::default(),
            },
        };
        let meter = self.meters.entry(counted.clone()).or_default();
        (counted, meter)
    }
}

/// See the module's words.
pub(super) struct Quotas {
    windows: Windows,
    produced: RefCell<Side>,
    consumed: RefCell<Side>,
}

type Totals = Vec<(Sharer, u64)>;

impl Quotas {
    pub(super) fn new(config: &BrokerConfig) -> Quotas {
        let number = |name: &str| config.given(name).and_then(|text| text.trim().parse().ok());
        Quotas {
            windows: Windows {
                each: Duration::from_secs(number("quota.window.size.seconds").unwrap_or(1)),
                count: number("quota.window.num").unwrap_or(11) as u32,
            },
            produced: RefCell::default(),
            consumed: RefCell::default(),
        }
    }

    fn side(&self, counted: Counted) -> &RefCell<Side> {
        match counted {
            Counted::Produced => &self.produced,
            Counted::Consumed => &self.consumed,
        }
    }

    /// Takes the quotas that the metadata has now.
    pub(super) fn take(&self, image: &Image) {
        self.produced.borrow_mut().table = QuotaTable::new(image, PRODUCER_BYTE_RATE);
        self.consumed.borrow_mut().table = QuotaTable::new(image, CONSUMER_BYTE_RATE);
    }

    fn any(&self) -> bool {
        let some = |side: &RefCell<Side>| !side.borrow().table.is_empty();
        some(&self.produced) || some(&self.consumed)
    }

    fn totals(&self, counted: Counted, now: Instant) -> Totals {
        let mut side = self.side(counted).borrow_mut();
        let windows = self.windows;
        side.meters.retain(|_, meter| {
            meter.forget(now, windows);
            !meter.windows.is_empty()
        });
        let meters = side.meters.iter();
        meters
            .map(|(sharer, meter)| (sharer.clone(), meter.bytes()))
            .collect()
    }

    fn record(&self, counted: Counted, client: &str, bytes: u64, now: Instant) -> Duration {
        let mut side = self.side(counted).borrow_mut();
        if side.table.is_empty() {
            return Duration::ZERO;
        }
        let Some((limit, sharer)) = side.table.find(ANONYMOUS, client) else {
            return Duration::ZERO;
        };
        let windows = self.windows;
        let (sharer, meter) = side.meter(&sharer, now, windows);
        meter.record(bytes, now, windows);
        let others = side.others.get(&sharer).copied().unwrap_or_default();
        side.meters[&sharer].throttle(limit, others, now, windows)
    }
}

impl Shard {
    /// Counts bytes of a client; for how long its connection is not to be read on.
    pub fn count_for_quota(&self, counted: Counted, client: &str, bytes: usize) -> Duration {
        self.quotas.record(counted, client, bytes as u64, rt::now())
    }

    /// Hears from the other shards what they have counted, as long as there are quotas.
    pub(super) async fn exchange_quotas(self: Rc<Self>) {
        while !self.is_draining() {
            rt::select2(rt::sleep(EXCHANGE), self.drained()).await;
            if self.shards() < 2 || !self.quotas.any() {
                continue;
            }
            for counted in [Counted::Produced, Counted::Consumed] {
                let own = self.place();
                let ask = move |shard: Rc<Shard>| -> LocalFuture<Totals> {
                    let totals = match shard.place() == own {
                        true => Totals::new(),
                        false => shard.quotas.totals(counted, rt::now()),
                    };
                    Box::pin(std::future::ready(totals))
                };
                let answers = self.ask_all(ask).await;
                let mut others: AHashMap<Sharer, u64> = AHashMap::new();
                for (sharer, bytes) in answers.into_iter().flatten().flatten() {
                    *others.entry(sharer).or_default() += bytes;
                }
                self.quotas.side(counted).borrow_mut().others = others;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OF: Windows = Windows {
        each: Duration::from_secs(1),
        count: 11,
    };

    fn at(ms: u64) -> Instant {
        Instant(ms * 1_000_000)
    }

    #[test]
    fn who_is_over_the_rate_waits_until_it_is_under_it() {
        let mut meter = Meter::default();
        meter.record(1000, at(0), OF);
        assert_eq!(meter.throttle(100.0, 0, at(0), OF), Duration::ZERO);
        meter.record(500, at(900), OF);
        assert_eq!(
            meter.throttle(100.0, 0, at(900), OF),
            Duration::from_secs(5)
        );
        // What the other shards have counted is paid for too.
        assert_eq!(
            meter.throttle(100.0, 1000, at(900), OF),
            Duration::from_secs(15)
        );
        // A window that has passed is forgotten.
        meter.record(10, at(11_000), OF);
        assert_eq!(meter.throttle(100.0, 0, at(11_000), OF), Duration::ZERO);
    }

    #[test]
    fn more_clients_than_there_is_room_for_share_what_is_left() {
        let mut side = Side::default();
        let sharer = |n: usize| Sharer {
            user: Default::default(),
            client: n.to_string().into(),
        };
        for n in 0..SHARERS_MAX {
            side.meter(&sharer(n), at(1), OF).1.record(1, at(1), OF);
        }
        let (counted, meter) = side.meter(&sharer(SHARERS_MAX), at(2), OF);
        meter.record(1, at(2), OF);
        assert!(counted.client.is_empty());
        assert_eq!(side.meter(&sharer(5), at(2), OF).0, sharer(5));
        let late = at(20_000);
        let (counted, _) = side.meter(&sharer(SHARERS_MAX), late, OF);
        assert_eq!(counted, sharer(SHARERS_MAX), "the silent are forgotten");
        assert!(side.meters.len() < 10);
    }
}
