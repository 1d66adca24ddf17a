//! Random histories of one group: clients that join, sync, leave, bounce, lie and go silent; a
//! log that stores at once, late or not at all; time that passes; processes that restart. What
//! must hold is checked at every step. A failing seed is printed and replays.

use std::collections::{BTreeMap, BTreeSet};

use super::super::*;
use super::kit::*;
use crate::wire::messages::join_group_request::JoinGroupRequest;
use crate::wire::{ErrorCode, Str};

const STEPS: usize = 300;
const HISTORIES: u64 = 400;

/// What a client of the history knows.
#[derive(Clone, Debug, Default)]
struct Client {
    instance: Option<String>,
    id: String,
    generation: i32,
    is_leader: bool,
    members: Vec<String>,
}

#[derive(Debug)]
enum Waiting {
    Join { client: usize },
    Sync { member: String, generation: i32 },
    Commit { topic: &'static str, offset: i64 },
    Other,
}

struct History {
    world: World,
    rng: fastrand::Rng,
    clients: Vec<Client>,
    waiting: BTreeMap<ReplyToken, Waiting>,
    /// The highest generation that anybody was told, since the group was last deleted.
    generation: i32,
    /// Offsets that a commit may have left: every one asked for since the last that succeeded.
    possible: BTreeMap<&'static str, BTreeSet<i64>>,
    /// The leader of each generation, as told.
    leaders: BTreeMap<i32, BTreeSet<String>>,
    may_lose_appends: bool,
    has_lost_appends: bool,
}

impl History {
    fn new(seed: u64) -> History {
        let mut rng = fastrand::Rng::with_seed(seed);
        let settings = GroupSettings {
            max_size: rng.usize(2..6),
            initial_rebalance_delay_ms: [0, 3_000][rng.usize(0..2)],
            ..Default::default()
        };
        let clients = (0..5)
            .map(|index| Client {
                instance: (index >= 3).then(|| format!("i{index}")),
                ..Default::default()
            })
            .collect();
        History {
            world: World::with(settings, GroupLimits::default()),
            may_lose_appends: rng.bool(),
            rng,
            clients,
            waiting: BTreeMap::new(),
            generation: 0,
            possible: BTreeMap::new(),
            leaders: BTreeMap::new(),
            has_lost_appends: false,
        }
    }

    fn step(&mut self) {
        self.world.mode = match self.rng.u32(0..10) {
            0..=5 => LogMode::Immediate,
            6..=8 => LogMode::Held,
            _ if self.may_lose_appends => {
                self.has_lost_appends = true;
                LogMode::Refusing(ErrorCode::NOT_ENOUGH_REPLICAS)
            }
            _ => LogMode::Held,
        };
        let client = self.rng.usize(0..self.clients.len());
        match self.rng.u32(0..100) {
            0..=29 => self.join(client),
            30..=54 => self.sync(client),
            55..=64 => self.heartbeat(client),
            65..=69 => self.leave(client),
            70..=79 => self.commit(client),
            80..=91 => {
                let ms = [10, 500, 3_000, 11_000, 61_000][self.rng.usize(0..5)];
                self.world.advance_ms(ms);
            }
            92..=95 => self.world.release(),
            96 => self.time_out_append(),
            97 => self.delete(),
            98 => {
                self.clients[client] = Client {
                    instance: self.clients[client].instance.clone(),
                    ..Default::default()
                }
            }
            _ => self.restart(),
        }
        self.read_answers();
        self.check();
        if self.world.shard.group_summary(GROUP).is_none() {
            // Deleted, expired, or its first record was lost: the next group is another one.
            self.generation = 0;
            self.leaders.clear();
        }
    }

    fn join(&mut self, index: usize) {
        let client = &self.clients[index];
        let names: &[&str] =
            [&["range"][..], &["range", "sticky"], &["sticky", "range"]][self.rng.usize(0..3)];
        let request = JoinGroupRequest {
            group_instance_id: client.instance.as_deref().map(Str::from),
            protocols: protocols(names, &["orders"]),
            ..join_request(&client.id)
        };
        let version = match client.instance {
            Some(_) => self.rng.i16(5..=9),
            None => [3, 4, 9][self.rng.usize(0..3)],
        };
        let token = self.world.send_join(version, request);
        self.waiting.insert(token, Waiting::Join { client: index });
    }

    fn sync(&mut self, index: usize) {
        let client = self.clients[index].clone();
        // Now and then somebody remembers an older generation.
        let generation = client.generation - i32::from(self.rng.u32(0..10) == 0);
        let assignments: Vec<(String, String)> = client
            .members
            .iter()
            .map(|member| (member.clone(), format!("{generation}:{member}")))
            .collect();
        let assignments: Vec<(&str, &str)> = match client.is_leader {
            true => assignments
                .iter()
                .map(|(m, a)| (m.as_str(), a.as_str()))
                .collect(),
            false => Vec::new(),
        };
        let token = self.world.token();
        let call = self.world.call(4);
        let mut request = sync_request(&client.id, generation);
        request.protocol_name = None;
        request.group_instance_id = client.instance.as_deref().map(Str::from);
        request.assignments = assignments
            .into_iter()
            .map(|(member, assignment)| {
                crate::wire::messages::sync_group_request::SyncGroupRequestAssignment {
                    member_id: Str::from(member),
                    assignment: assignment.to_owned().into(),
                    ..Default::default()
                }
            })
            .collect();
        let effects = self.world.shard.sync_group(&call, request, token);
        self.world.carry_out(effects);
        self.waiting.insert(
            token,
            Waiting::Sync {
                member: client.id,
                generation,
            },
        );
    }

    fn heartbeat(&mut self, index: usize) {
        let client = self.clients[index].clone();
        let error = self.world.heartbeat(&client.id, client.generation);
        if matches!(
            error,
            ErrorCode::UNKNOWN_MEMBER_ID | ErrorCode::FENCED_INSTANCE_ID
        ) {
            self.clients[index].id.clear();
        }
    }

    fn leave(&mut self, index: usize) {
        let client = self.clients[index].clone();
        let token = self
            .world
            .send_leave(&[(&client.id, client.instance.as_deref())]);
        self.waiting.insert(token, Waiting::Other);
    }

    fn commit(&mut self, index: usize) {
        let client = self.clients[index].clone();
        let topic = ["orders", "clicks"][self.rng.usize(0..2)];
        let offset = self.rng.i64(0..1_000_000);
        let generation = if client.id.is_empty() {
            -1
        } else {
            client.generation
        };
        let request = commit_request(&client.id, generation, topic, offset);
        self.possible
            .entry(topic)
            .or_insert_with(|| BTreeSet::from([-1]))
            .insert(offset);
        let token = self.world.send_commit(9, request);
        self.waiting
            .insert(token, Waiting::Commit { topic, offset });
    }

    fn time_out_append(&mut self) {
        let Some((id, _)) = self.world.held.front().cloned() else {
            return;
        };
        let effects = self.world.shard.append_timed_out(id, self.world.clock);
        self.world.carry_out(effects);
        self.has_lost_appends = true;
    }

    fn delete(&mut self) {
        let token = self.world.token();
        let call = self.world.call(2);
        let effects = self
            .world
            .shard
            .delete_groups(&call, &[Str::from(GROUP)], token);
        self.world.carry_out(effects);
        self.waiting.insert(token, Waiting::Other);
        for offsets in self.possible.values_mut() {
            offsets.insert(-1);
        }
    }

    /// Leadership goes and comes back in a new process with the same log.
    fn restart(&mut self) {
        self.world.release();
        self.read_answers();
        let fresh = self.world.restarted();
        if !self.has_lost_appends {
            same_stored_state(&self.world.shard, &fresh.shard);
        }
        self.world.carry_out_unload();
        self.read_answers();
        assert!(
            self.waiting.is_empty(),
            "left without an answer: {:?}",
            self.waiting
        );
        let asked = self.world.asked();
        assert_eq!(self.world.answered, asked);
        self.world.shard = fresh.shard;
        self.generation = self.world.generation().max(0);
        self.leaders.clear();
    }

    fn read_answers(&mut self) {
        let tokens: Vec<ReplyToken> = self.waiting.keys().copied().collect();
        for token in tokens {
            let Some(response) = self.world.answer(token) else {
                continue;
            };
            match (self.waiting.remove(&token), response) {
                (Some(Waiting::Join { client }), Response::JoinGroup(response)) => {
                    self.read_join(client, response);
                }
                (Some(Waiting::Sync { member, generation }), Response::SyncGroup(response)) => {
                    let text = String::from_utf8(response.assignment.to_vec()).unwrap();
                    if response.error_code == 0 && !text.is_empty() {
                        // A static member that bounced has what its former self was given.
                        let (of, owner) = text.split_once(':').unwrap();
                        assert_eq!(
                            of,
                            generation.to_string(),
                            "assignment of another generation"
                        );
                        let same = owner == member || member.starts_with('i');
                        assert!(same, "{member} was given what is {owner}'s");
                    }
                }
                (Some(Waiting::Commit { topic, offset }), Response::OffsetCommit(response)) => {
                    if response.topics[0].partitions[0].error_code == 0
                        && self.world.fetch(GROUP, topic) == offset
                    {
                        self.possible.insert(topic, BTreeSet::from([offset]));
                        for waiting in self.waiting.values() {
                            if let Waiting::Commit {
                                topic: other,
                                offset,
                            } = waiting
                                && *other == topic
                            {
                                self.possible.entry(topic).or_default().insert(*offset);
                            }
                        }
                        if self.has_lost_appends {
                            // An older one that was given up may still come.
                            self.possible.remove(topic);
                        }
                    }
                }
                (Some(Waiting::Other), _) => {}
                (waiting, response) => panic!("{waiting:?} was answered with {response:?}"),
            }
        }
    }

    fn read_join(
        &mut self,
        client: usize,
        response: crate::wire::messages::join_group_response::JoinGroupResponse,
    ) {
        let error = ErrorCode(response.error_code);
        let client = &mut self.clients[client];
        match error {
            ErrorCode::NONE => {
                assert!(
                    response.generation_id >= self.generation,
                    "generation {} after {}",
                    response.generation_id,
                    self.generation
                );
                self.generation = response.generation_id;
                if !response.members.is_empty() && !response.skip_assignment {
                    let leaders = self.leaders.entry(response.generation_id).or_default();
                    leaders.insert(response.leader.to_string());
                    let names: BTreeSet<&str> = leaders
                        .iter()
                        .map(|leader| leader.split('-').next().unwrap())
                        .collect();
                    assert_eq!(names.len(), 1, "two leaders in one generation: {leaders:?}");
                }
                client.id = response.member_id.to_string();
                client.generation = response.generation_id;
                client.is_leader = response.leader == response.member_id;
                client.members = response
                    .members
                    .iter()
                    .map(|member| member.member_id.to_string())
                    .collect();
            }
            ErrorCode::MEMBER_ID_REQUIRED => client.id = response.member_id.to_string(),
            ErrorCode::REBALANCE_IN_PROGRESS => {}
            _ => client.id.clear(),
        }
    }

    fn check(&mut self) {
        assert!(self.world.generation() <= self.generation.max(0) + 2 * STEPS as i32);
        if self.has_lost_appends {
            return;
        }
        for (topic, possible) in &self.possible {
            let offset = self.world.fetch(GROUP, topic);
            assert!(
                possible.contains(&offset),
                "{topic} is at {offset}, not in {possible:?}"
            );
        }
    }
}

/// What is stored must be what is in memory, wherever memory is settled.
fn same_stored_state(shard: &GroupCoordinatorShard, fresh: &GroupCoordinatorShard) {
    for group in shard.groups.values().filter(|group| group.is_durable) {
        let restored = fresh
            .groups
            .get(&group.id)
            .expect("a stored group is found again");
        for topic in ["orders", "clicks"] {
            assert_eq!(
                shard.offsets.get(&group.id, topic, 0),
                fresh.offsets.get(&group.id, topic, 0)
            );
        }
        if matches!(group.state().name(), "Stable" | "Empty") && group.protocol_type.is_some() {
            assert_eq!(group.state(), restored.state());
            assert_eq!(group.generation, restored.generation);
            assert_eq!(group.leader, restored.leader);
            let list = |group: &super::super::group::Group| -> Vec<_> {
                let mut list: Vec<_> = group
                    .members()
                    .map(|member| (member.id.clone(), member.assignment.clone()))
                    .collect();
                list.sort();
                list
            };
            assert_eq!(list(group), list(restored));
        }
    }
    assert_eq!(
        shard
            .groups
            .values()
            .filter(|group| group.is_durable)
            .count(),
        fresh.groups.len(),
        "groups that were deleted stay deleted"
    );
}

struct TellSeed(u64);

impl Drop for TellSeed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!(
                "failing seed {0}: run it alone with HISTORY_SEED={0}",
                self.0
            );
        }
    }
}

#[test]
fn no_history_breaks_a_promise() {
    let number = |name: &str| {
        std::env::var(name)
            .ok()
            .and_then(|text| text.parse::<u64>().ok())
    };
    let seeds = match number("HISTORY_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("HISTORIES").unwrap_or(HISTORIES),
    };
    for seed in seeds {
        let _told = TellSeed(seed);
        let mut history = History::new(seed);
        for _ in 0..STEPS {
            history.step();
        }
        history.restart();
    }
}
