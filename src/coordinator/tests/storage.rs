//! Records: the bytes that Kafka 4.4 writes, what older versions left behind, what others own,
//! and a shard that comes back from its log as it was.

use bytes::Bytes;

use super::super::records;
use super::super::*;
use super::kit::*;
use crate::types::{LeaderEpoch, Offset, Uuid};
use crate::wire::batch::Batch;
use crate::wire::batch_builder::{BatchBuilder, end_txn_marker};
use crate::wire::{ErrorCode, Str};

/// Records that a Kafka 4.4.0 broker wrote for a console consumer of group "g2" on topic "t2".
const GROUP_KEY: &str = "000200026732";
const NEW_GROUP: &str = "0003000000000000ffffffff000001a227dde0c000000000";
const STABLE_GROUP: &str = "00030008636f6e73756d657200000001000572616e67650035636f6e736f6c652d63\
    6f6e73756d65722d61663036323534392d383934622d346562392d386664392d3133343531396631656565330000\
    01a227dde0d3000000010035636f6e736f6c652d636f6e73756d65722d61663036323534392d383934622d346562\
    392d386664392d313334353139663165656533ffff0010636f6e736f6c652d636f6e73756d6572000a2f3132372e\
    302e302e31000493e00000afc80000001800030000000100027432ffffffff00000000ffffffffffff0000002200\
    0300000001000274320000000400000000000000010000000200000003ffffffff";
const EMPTY_GROUP: &str = "00030008636f6e73756d657200000002ffffffff000001a227dde13e00000000";
const OFFSET_KEY: &str = "0001000267320002743200000002";
const OFFSET: &str =
    "000400000000000000140000000001000001a227dde1370100104e4a1a694af543329331a377776a0659";

fn hex(text: &str) -> Bytes {
    let digits: Vec<u8> = text
        .chars()
        .filter_map(|digit| digit.to_digit(16))
        .map(|digit| digit as u8)
        .collect();
    digits
        .chunks(2)
        .map(|pair| pair[0] << 4 | pair[1])
        .collect()
}

fn loaded(records: &[(&str, Option<&str>)]) -> GroupCoordinatorShard {
    let mut shard = GroupCoordinatorShard::new(GroupSettings::default(), GroupLimits::default());
    for (offset, (key, value)) in records.iter().enumerate() {
        let value = value.map(hex);
        shard
            .replay_record(offset as i64, -1, &hex(key), value.as_ref())
            .unwrap();
    }
    shard
}

#[test]
fn records_are_kafkas_byte_for_byte() {
    let shard = loaded(&[
        (GROUP_KEY, Some(NEW_GROUP)),
        (GROUP_KEY, Some(STABLE_GROUP)),
        (OFFSET_KEY, Some(OFFSET)),
    ]);
    let group = &shard.groups["g2"];
    assert_eq!(
        (group.generation, group.state().name(), group.len()),
        (1, "Stable", 1)
    );
    assert_eq!(
        group.subscribed_topics.iter().flatten().collect::<Vec<_>>(),
        ["t2"]
    );
    let record = records::group_metadata(group, |member| member.assignment.clone());
    assert_eq!(
        (record.key, record.value),
        (hex(GROUP_KEY), Some(hex(STABLE_GROUP)))
    );

    let value = shard.offsets.get("g2", "t2", 2).unwrap();
    assert_eq!(
        (value.offset, value.leader_epoch, value.record_offset),
        (20, 0, 2)
    );
    assert_eq!(value.topic_id.to_string(), "TkoaaUr1QzKTMaN3d2oGWQ");
    let record = records::offset_commit(&Str::from("g2"), &Str::from("t2"), 2, value);
    assert_eq!(
        (record.key, record.value),
        (hex(OFFSET_KEY), Some(hex(OFFSET)))
    );

    let shard = loaded(&[
        (GROUP_KEY, Some(STABLE_GROUP)),
        (GROUP_KEY, Some(EMPTY_GROUP)),
    ]);
    let group = &shard.groups["g2"];
    assert_eq!(
        (group.generation, group.state().name(), group.len()),
        (2, "Empty", 0)
    );
    let record = records::group_metadata(group, |_| Bytes::new());
    assert_eq!(record.value, Some(hex(EMPTY_GROUP)));

    let shard = loaded(&[(GROUP_KEY, Some(NEW_GROUP))]);
    let record = records::new_group_metadata(&shard.groups["g2"]);
    assert_eq!(record.value, Some(hex(NEW_GROUP)));
    // The file these records came from.
    assert_eq!(partition_for("g2", 50), 43);
}

#[test]
fn tombstones_are_kafkas_too() {
    let group = Str::from("g2");
    assert_eq!(records::group_tombstone(&group).key, hex(GROUP_KEY));
    let record = records::offset_tombstone(&group, &Str::from("t2"), 2);
    assert_eq!((record.key, record.value), (hex(OFFSET_KEY), None));
    let shard = loaded(&[
        (GROUP_KEY, Some(STABLE_GROUP)),
        (OFFSET_KEY, Some(OFFSET)),
        (OFFSET_KEY, None),
        (GROUP_KEY, None),
    ]);
    assert_eq!(shard.group_count(), 0);
    assert_eq!(shard.offsets.get("g2", "t2", 2), None);
}

#[test]
fn what_older_brokers_wrote_is_understood() {
    // Key type 0, value version 0: offset, metadata, commit timestamp.
    let legacy = "0000000000000000002a00016d000001a227dde137";
    // Value version 1 has an expiry after that, version 3 a leader epoch before the metadata.
    let expiring = "0001000000000000002b0000000001a227dde137000001a227dde138";
    let with_epoch = "0003000000000000002c000000070000000001a227dde137";
    let shard = loaded(&[("0000000267320002743200000000", Some(legacy))]);
    let value = shard.offsets.get("g2", "t2", 0).unwrap();
    assert_eq!(
        (value.offset, value.leader_epoch, value.metadata.as_str()),
        (42, -1, "m")
    );
    assert_eq!((value.topic_id, value.expire_ms), (Uuid::ZERO, None));
    let shard = loaded(&[(OFFSET_KEY, Some(expiring))]);
    let value = shard.offsets.get("g2", "t2", 2).unwrap();
    assert_eq!(
        (value.offset, value.expire_ms),
        (43, Some(value.commit_ms + 1))
    );
    let record = records::offset_commit(&Str::from("g2"), &Str::from("t2"), 2, value);
    assert_eq!(record.value, Some(hex(expiring)));
    let shard = loaded(&[(OFFSET_KEY, Some(with_epoch))]);
    assert_eq!(shard.offsets.get("g2", "t2", 2).unwrap().leader_epoch, 7);
    assert_eq!(shard.groups["g2"].state().name(), "Empty");
}

#[test]
fn groups_of_other_protocols_are_left_alone() {
    // Types 3 (consumer), 11 (share), 17 (streams) name a group; 5 is one of its details, 99 unknown.
    let mut world = World::new();
    world.shard = loaded(&[
        (
            "0003000272656164657273".replace("0002", "0007").as_str(),
            Some("000000000001"),
        ),
        ("0005000772656164657273 0001 6d", Some("0000")),
        ("0063ffff", Some("00")),
        (
            "0001000772656164657273 00066f7264657273 00000000",
            Some(OFFSET),
        ),
    ]);
    let effects = world.shard.finish_loading(world.clock);
    world.carry_out(effects);
    assert_eq!(
        world.shard.group_count(),
        0,
        "its offsets do not make it a classic group"
    );
    assert_eq!(world.fetch(GROUP, "orders"), 20);
    let join = world.join("");
    assert_eq!(
        world.joined(join).error_code,
        ErrorCode::INCONSISTENT_GROUP_PROTOCOL.0
    );
    assert_eq!(
        world.commit("", -1, "orders", 1),
        ErrorCode::UNKNOWN_MEMBER_ID
    );
    let token = world.token();
    let call = world.call(2);
    let effects = world.shard.delete_groups(&call, &[Str::from(GROUP)], token);
    world.carry_out(effects);
    let Some(Response::DeleteGroups(results)) = world.answer(token) else {
        panic!()
    };
    assert_eq!(results[0].error_code, ErrorCode::NON_EMPTY_GROUP.0);
    world.advance_ms(8 * 24 * 3_600 * 1_000);
    assert_eq!(world.log.len(), 0, "nothing of it is ever deleted");
    let described = &world.shard.describe_groups(&[Str::from(GROUP)], 6)[0];
    assert_eq!(described.error_code, ErrorCode::GROUP_ID_NOT_FOUND.0);
}

#[test]
fn a_torn_record_stops_the_load_and_never_panics() {
    for (key, value) in [(GROUP_KEY, STABLE_GROUP), (OFFSET_KEY, OFFSET)] {
        let (key, value) = (hex(key), hex(value));
        for cut in 0..value.len() {
            let mut shard =
                GroupCoordinatorShard::new(GroupSettings::default(), GroupLimits::default());
            let torn = value.slice(..cut);
            assert!(
                shard.replay_record(0, -1, &key, Some(&torn)).is_err(),
                "cut at {cut}"
            );
        }
        for cut in 2..key.len() {
            let mut shard =
                GroupCoordinatorShard::new(GroupSettings::default(), GroupLimits::default());
            assert!(
                shard
                    .replay_record(0, -1, &key.slice(..cut), Some(&value))
                    .is_err()
            );
        }
    }
}

#[test]
fn batches_with_transactions_load_as_their_markers_say() {
    let batch = |bytes: Bytes, at: i64| {
        let mut bytes = bytes.to_vec();
        crate::wire::batch::set_base_offset(&mut bytes, Offset(at));
        crate::wire::batch::set_partition_leader_epoch(&mut bytes, LeaderEpoch(0));
        Batch::parse(&Bytes::from(bytes)).unwrap().0
    };
    let commit = |producer: i64, partition: i32, at: i64| {
        let mut builder = BatchBuilder::new().with_producer(producer, 0, 0);
        builder.transactional = true;
        let key = [&hex(OFFSET_KEY)[..10], &partition.to_be_bytes()].concat();
        builder
            .append(0, Some(&key), Some(&hex(OFFSET)), &[])
            .unwrap();
        batch(builder.build().unwrap(), at)
    };
    let marker = |producer: i64, committed: bool, at: i64| {
        batch(end_txn_marker(producer, 0, committed, 0, 0).unwrap(), at)
    };
    let mut shard = GroupCoordinatorShard::new(GroupSettings::default(), GroupLimits::default());
    let batches = [commit(7, 0, 0), commit(8, 1, 1), commit(9, 2, 2)];
    for batch in batches
        .iter()
        .chain(&[marker(7, true, 3), marker(8, false, 4)])
    {
        shard.replay_batch(batch).unwrap();
    }
    let offset = |partition| {
        shard
            .offsets
            .get("g2", "t2", partition)
            .map(|value| value.offset)
    };
    assert_eq!((offset(0), offset(1), offset(2)), (Some(20), None, None));
    assert!(!shard.offsets.is_pending("g2", "t2", 1));
    assert!(
        shard.offsets.is_pending("g2", "t2", 2),
        "its marker is yet to come"
    );
}

#[test]
fn a_restart_brings_members_back_with_their_sessions() {
    let mut world = World::new();
    let (first, second) = world.two_stable_members();
    assert_eq!(world.commit(&first, 1, "orders", 7), ErrorCode::NONE);
    world.advance_ms(9_000);
    let mut world = world.restarted();
    assert_eq!((world.state(), world.generation()), ("Stable", 1));
    assert_eq!(world.heartbeat(&first, 1), ErrorCode::NONE);
    let sync = world.sync(&second, 1, &[]);
    assert_eq!(world.synced(sync).assignment, "b");
    assert_eq!(world.commit(&second, 1, "orders", 8), ErrorCode::NONE);
    // Sessions count from the load.
    world.advance_ms(SESSION_MS as u64 - 1);
    assert_eq!(world.state(), "Stable");
    world.advance_ms(1);
    assert_eq!((world.state(), world.generation()), ("Empty", 2));
}

#[test]
fn an_assignment_that_is_not_stored_sends_everybody_back_to_join() {
    let mut world = World::new();
    let (first, second) = (world.new_id(), world.new_id());
    let joins = [world.join(&first), world.join(&second)];
    world.advance_ms(6_000);
    for join in joins {
        world.joined(join);
    }
    let follower = world.sync(&second, 1, &[]);
    world.mode = LogMode::Refusing(ErrorCode::NOT_LEADER_OR_FOLLOWER);
    let leader = world.sync(&first, 1, &[(&first, "a"), (&second, "b")]);
    for sync in [leader, follower] {
        assert_eq!(world.synced(sync).error_code, ErrorCode::NOT_COORDINATOR.0);
    }
    assert_eq!(world.state(), "PreparingRebalance");
}

#[test]
fn an_assignment_under_way_when_somebody_joins_is_not_handed_out() {
    let mut world = World::new();
    let first = world.new_id();
    let join = world.join(&first);
    world.advance_ms(3_000);
    world.joined(join);
    world.mode = LogMode::Held;
    let sync = world.sync(&first, 1, &[(&first, "a")]);
    // A leader that asks twice stores once.
    let again = world.sync(&first, 1, &[(&first, "other")]);
    assert_eq!(world.held.len(), 1);
    assert_eq!(
        world.synced(sync).error_code,
        ErrorCode::REBALANCE_IN_PROGRESS.0
    );
    let second = world.new_id();
    let second_join = world.join(&second);
    assert_eq!(
        world.synced(again).error_code,
        ErrorCode::REBALANCE_IN_PROGRESS.0
    );
    world.release();
    assert_eq!(world.state(), "PreparingRebalance");
    let join = world.join(&first);
    assert_eq!(world.joined(join).generation_id, 2);
    world.joined(second_join);
    assert_eq!(world.state(), "CompletingRebalance");
}

#[test]
fn a_group_whose_first_record_is_lost_never_was() {
    let mut world = World::new();
    world.mode = LogMode::Refusing(ErrorCode::NOT_ENOUGH_REPLICAS);
    let join = world.send_join(3, join_request(""));
    assert_eq!(
        world.joined(join).error_code,
        ErrorCode::COORDINATOR_NOT_AVAILABLE.0
    );
    assert_eq!(world.shard.group_count(), 0);
    assert_eq!(
        world.shard.work_in_progress(),
        (1, 0),
        "only the retention sweep is left"
    );
    world.mode = LogMode::Held;
    world.send_join(3, join_request(""));
    assert_eq!(
        world.shard.list_groups(&[], &[]).unwrap(),
        [],
        "not stored yet, so not listed"
    );
    world.release();
    assert_eq!(world.shard.list_groups(&[], &[]).unwrap().len(), 1);
}

#[test]
fn listing_and_describing_know_states_and_types() {
    let mut world = World::new();
    let (first, _) = world.two_stable_members();
    let list = |states: &[&str], types: &[&str]| {
        let to_strs = |names: &[&str]| {
            names
                .iter()
                .map(|name| Str::from(*name))
                .collect::<Vec<_>>()
        };
        world
            .shard
            .list_groups(&to_strs(states), &to_strs(types))
            .unwrap()
            .len()
    };
    assert_eq!(list(&[], &[]), 1);
    assert_eq!(list(&[" STABLE ", "Empty"], &["Classic", "share"]), 1);
    assert_eq!(list(&["Empty"], &[]), 0);
    assert_eq!(list(&[], &["consumer", "nonsense"]), 0);
    let ids = [Str::from(GROUP), Str::from("ghost")];
    let described = world.shard.describe_groups(&ids, 6);
    assert_eq!(
        (described[0].group_state.as_str(), described[0].error_code),
        ("Stable", 0)
    );
    assert_eq!(described[0].protocol_data, "range");
    let member = &described[0].members[0];
    assert_eq!(
        (&member.member_id, member.client_host.as_str()),
        (&first, "/127.0.0.1")
    );
    assert_eq!(member.member_assignment, "a");
    assert!(!member.member_metadata.is_empty());
    assert_eq!(
        (described[1].group_state.as_str(), described[1].error_code),
        ("Dead", 69)
    );
    assert_eq!(
        described[1].error_message.as_deref(),
        Some("Group ghost not found.")
    );
    assert_eq!(world.shard.describe_groups(&ids, 5)[1].error_code, 0);
    let join = world.join(&first);
    let described = world.shard.describe_groups(&ids, 6);
    assert_eq!(described[0].group_state, "PreparingRebalance");
    assert!(
        described[0].members[0].member_metadata.is_empty(),
        "the protocol is not settled"
    );
    assert_eq!(world.answer(join), None);
}

#[test]
fn damaged_records_neither_panic_nor_corrupt_what_follows() {
    for seed in 0..3_000 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut shard =
            GroupCoordinatorShard::new(GroupSettings::default(), GroupLimits::default());
        for (key, value) in [(GROUP_KEY, STABLE_GROUP), (OFFSET_KEY, OFFSET)] {
            let mut value = hex(value).to_vec();
            for _ in 0..rng.usize(1..4) {
                let at = rng.usize(0..value.len());
                value[at] = rng.u8(..);
            }
            // An error is fine; the load stops there.
            let _ = shard.replay_record(0, -1, &hex(key), Some(&Bytes::from(value)));
        }
        let clock = |ms: u64| Clock {
            now: crate::rt::Instant(ms * 1_000_000),
            wall_ms: START_WALL_MS + ms as i64,
        };
        let mut effects = vec![shard.finish_loading(clock(0))];
        for minute in 1..200 {
            effects.push(shard.on_tick(clock(minute * 60_000)));
            while let Some(some) = effects.pop() {
                for effect in some {
                    if let Effect::Append { then, .. } = effect {
                        effects.push(shard.append_done(then, Ok(9), clock(minute * 60_000)));
                    }
                }
            }
        }
        for group in shard.groups.values() {
            group.check();
        }
    }
}

#[test]
fn names_that_grow_when_they_are_read_stop_the_load() {
    // 20,000 bytes that are no UTF-8 become as many replacement characters of three bytes.
    let mut key = vec![0, 2];
    key.extend_from_slice(&20_000i16.to_be_bytes());
    key.extend(std::iter::repeat_n(0xff, 20_000));
    let mut shard = GroupCoordinatorShard::new(GroupSettings::default(), GroupLimits::default());
    let outcome = shard.replay_record(3, -1, &Bytes::from(key), Some(&hex(NEW_GROUP)));
    assert!(matches!(outcome, Err(ReplayError::Name { offset: 3 })));
}
