//! How the leader of a group spreads the partitions over the members, as Java's assignors do.
//!
//! Pure. Members are taken in Kafka's order: static ones by instance id, then the others by member
//! id.

use std::collections::BTreeMap;

use super::config::Assignor;
use super::topic_partition::TopicPartition;
use crate::wire::Str;

/// A member with its subscription.
#[derive(Clone, Debug)]
pub(super) struct Subscriber {
    pub(super) member_id: Str,
    pub(super) instance_id: Option<Str>,
    pub(super) topics: Vec<Str>,
}

impl Assignor {
    /// Its name in `partition.assignment.strategy` and in the group's protocols.
    pub fn name(self) -> &'static str {
        match self {
            Assignor::Range => "range",
            Assignor::RoundRobin => "roundrobin",
        }
    }

    /// What each member gets, by position in `members`. `partitions` is the number of partitions
    /// of a topic, 0 if there is no such topic.
    pub(super) fn assign(
        self,
        members: &[Subscriber],
        partitions: impl Fn(&str) -> usize,
    ) -> Vec<Vec<TopicPartition>> {
        let mut order: Vec<usize> = (0..members.len()).collect();
        order.sort_by_key(|at| {
            let member = &members[*at];
            (
                member.instance_id.is_none(),
                member.instance_id.clone(),
                member.member_id.clone(),
            )
        });
        // Topics in the order of their names, each with its subscribers in member order.
        let mut topics: BTreeMap<&Str, Vec<usize>> = BTreeMap::new();
        for at in &order {
            for topic in &members[*at].topics {
                let subscribers = topics.entry(topic).or_default();
                if subscribers.last() != Some(at) {
                    subscribers.push(*at);
                }
            }
        }
        let mut assigned = vec![Vec::new(); members.len()];
        match self {
            Assignor::Range => {
                for (topic, subscribers) in topics {
                    let count = partitions(topic);
                    let each = count / subscribers.len();
                    let extra = count % subscribers.len();
                    let mut next = 0;
                    for (rank, member) in subscribers.iter().enumerate() {
                        let end = next + each + usize::from(rank < extra);
                        assigned[*member].extend(
                            (next..end).map(|p| TopicPartition::new(topic.clone(), p as i32)),
                        );
                        next = end;
                    }
                }
            }
            Assignor::RoundRobin => {
                let mut turn = 0;
                for (topic, subscribers) in topics {
                    for partition in 0..partitions(topic) {
                        while !subscribers.contains(&order[turn]) {
                            turn = (turn + 1) % order.len();
                        }
                        assigned[order[turn]]
                            .push(TopicPartition::new(topic.clone(), partition as i32));
                        turn = (turn + 1) % order.len();
                    }
                }
            }
        }
        assigned
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(id: &str, instance: Option<&str>, topics: &[&str]) -> Subscriber {
        Subscriber {
            member_id: id.into(),
            instance_id: instance.map(Str::from),
            topics: topics.iter().map(|topic| Str::from(*topic)).collect(),
        }
    }

    fn show(assigned: &[Vec<TopicPartition>]) -> Vec<String> {
        assigned
            .iter()
            .map(|all| {
                all.iter()
                    .map(ToString::to_string)
                    .collect::<Vec<_>>()
                    .join(" ")
            })
            .collect()
    }

    #[test]
    fn range_gives_the_first_members_the_remainder() {
        let members = [
            member("c1", None, &["a", "b"]),
            member("c0", None, &["a", "b"]),
        ];
        let assigned = Assignor::Range.assign(&members, |_| 3);
        assert_eq!(show(&assigned), ["a-2 b-2", "a-0 a-1 b-0 b-1"]);
    }

    #[test]
    fn static_members_come_first_in_the_order_of_their_instances() {
        let members = [
            member("aaa", None, &["t"]),
            member("zzz", Some("1"), &["t"]),
            member("yyy", Some("2"), &["t"]),
        ];
        let assigned = Assignor::Range.assign(&members, |_| 4);
        assert_eq!(show(&assigned), ["t-3", "t-0 t-1", "t-2"]);
    }

    #[test]
    fn round_robin_goes_on_where_the_last_topic_ended_and_skips_the_unsubscribed() {
        let members = [
            member("c0", None, &["t0"]),
            member("c1", None, &["t0", "t1"]),
            member("c2", None, &["t0", "t1", "t2"]),
        ];
        let count = |topic: &str| match topic {
            "t0" => 1,
            "t1" => 2,
            _ => 3,
        };
        let assigned = Assignor::RoundRobin.assign(&members, count);
        assert_eq!(show(&assigned), ["t0-0", "t1-0", "t1-1 t2-0 t2-1 t2-2"]);
    }

    #[test]
    fn every_partition_goes_to_exactly_one_subscriber() {
        let seed = fastrand::u64(..);
        let mut random = fastrand::Rng::with_seed(seed);
        for _ in 0..200 {
            let topics = ["a", "b", "c"];
            let members: Vec<Subscriber> = (0..random.usize(1..6))
                .map(|n| {
                    let some: Vec<&str> =
                        topics.iter().copied().filter(|_| random.bool()).collect();
                    member(&format!("m{n}"), None, &some)
                })
                .collect();
            let counts: Vec<usize> = (0..3).map(|_| random.usize(..5)).collect();
            let count = |topic: &str| counts[topics.iter().position(|t| *t == topic).unwrap()];
            for assignor in [Assignor::Range, Assignor::RoundRobin] {
                let assigned = assignor.assign(&members, count);
                let mut all: Vec<TopicPartition> = assigned.iter().flatten().cloned().collect();
                all.sort();
                let wanted: Vec<TopicPartition> = topics
                    .iter()
                    .filter(|t| {
                        members
                            .iter()
                            .any(|m| m.topics.iter().any(|own| *own == **t))
                    })
                    .flat_map(|t| {
                        (0..count(t)).map(|p| TopicPartition::new(Str::from(*t), p as i32))
                    })
                    .collect();
                assert_eq!(all, wanted, "seed {seed} {assignor:?}");
                for (member, own) in members.iter().zip(&assigned) {
                    assert!(
                        own.iter().all(|p| member.topics.contains(&p.topic)),
                        "seed {seed}"
                    );
                }
            }
        }
    }
}
