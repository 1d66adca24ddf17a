//! Committed offsets: who may commit, what is fetched, deletion, retention, transactions.

use super::super::*;
use super::kit::*;
use crate::types::Uuid;
use crate::wire::messages::join_group_request::JoinGroupRequest;
use crate::wire::messages::offset_commit_request::{
    OffsetCommitRequest, OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use crate::wire::messages::offset_delete_request::{
    OffsetDeleteRequest, OffsetDeleteRequestPartition, OffsetDeleteRequestTopic,
};
use crate::wire::messages::offset_fetch_request::{
    OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchRequestTopic, OffsetFetchRequestTopics,
};
use crate::wire::{ErrorCode, Str};

const RETENTION_MS: u64 = 7 * 24 * 3_600 * 1_000;
const SWEEP_MS: u64 = 600_000;

fn delete(world: &mut World, group: &str, topic: &str) -> (ErrorCode, ErrorCode) {
    let token = world.token();
    let call = world.call(0);
    let request = OffsetDeleteRequest {
        group_id: Str::from(group),
        topics: vec![OffsetDeleteRequestTopic {
            name: Str::from(topic),
            partitions: vec![OffsetDeleteRequestPartition::default()],
            ..Default::default()
        }],
        ..Default::default()
    };
    let effects = world.shard.offset_delete(&call, request, &Topics, token);
    world.carry_out(effects);
    let Some(Response::OffsetDelete(response)) = world.answer(token) else {
        panic!()
    };
    let partition = response
        .topics
        .first()
        .map_or(0, |topic| topic.partitions[0].error_code);
    (ErrorCode(response.error_code), ErrorCode(partition))
}

pub(super) fn delete_groups(world: &mut World, ids: &[&str]) -> Vec<ErrorCode> {
    let token = world.token();
    let call = world.call(2);
    let ids: Vec<Str> = ids.iter().map(|id| Str::from(*id)).collect();
    let effects = world.shard.delete_groups(&call, &ids, token);
    world.carry_out(effects);
    let Some(Response::DeleteGroups(results)) = world.answer(token) else {
        panic!()
    };
    results
        .iter()
        .map(|result| ErrorCode(result.error_code))
        .collect()
}

#[test]
fn members_commit_in_their_generation_and_strangers_do_not() {
    let mut world = World::new();
    let (first, second) = world.two_stable_members();
    assert_eq!(world.commit(&first, 1, "orders", 10), ErrorCode::NONE);
    assert_eq!(world.fetch(GROUP, "orders"), 10);
    assert_eq!(
        world.commit(&first, 0, "orders", 11),
        ErrorCode::ILLEGAL_GENERATION
    );
    assert_eq!(
        world.commit("stranger", 1, "orders", 11),
        ErrorCode::UNKNOWN_MEMBER_ID
    );
    assert_eq!(
        world.commit("", -1, "orders", 11),
        ErrorCode::UNKNOWN_MEMBER_ID
    );
    let (unknown, fenced) = (ErrorCode::UNKNOWN_MEMBER_ID, ErrorCode::ILLEGAL_GENERATION);
    assert_eq!(world.commit(&second, -1, "orders", 11), fenced);
    // While members rejoin, those of the old generation may still commit.
    let join = world.join(&second);
    world.joined(join);
    let leader = world.join(&first);
    assert_eq!(world.state(), "PreparingRebalance");
    assert_eq!(world.commit(&second, 1, "orders", 12), ErrorCode::NONE);
    let follower = world.join(&second);
    world.joined(leader);
    world.joined(follower);
    // In the sync phase nobody knows yet what it owns.
    assert_eq!(
        world.commit(&second, 2, "orders", 13),
        ErrorCode::REBALANCE_IN_PROGRESS
    );
    assert_eq!(
        world.commit(&second, 1, "orders", 13),
        ErrorCode::ILLEGAL_GENERATION
    );
    assert_eq!(world.fetch(GROUP, "orders"), 12);
    assert_eq!(world.commit("", -1, "orders", 13), unknown);
}

#[test]
fn a_commit_without_a_group_makes_a_simple_one() {
    let mut world = World::new();
    assert_eq!(
        world.commit("m", 3, "orders", 1),
        ErrorCode::GROUP_ID_NOT_FOUND
    );
    let token = world.send_commit(8, commit_request("m", 3, "orders", 1));
    let response = world.committed(token);
    assert_eq!(
        response.topics[0].partitions[0].error_code,
        ErrorCode::ILLEGAL_GENERATION.0
    );
    assert_eq!(world.shard.group_count(), 0);
    assert_eq!(world.commit("", -1, "orders", 5), ErrorCode::NONE);
    assert_eq!(world.state(), "Empty");
    let listed = world.shard.list_groups(&[], &[]).unwrap();
    assert_eq!(
        (
            listed[0].protocol_type.as_str(),
            listed[0].group_type.as_str()
        ),
        ("", "classic")
    );
    // An administrator resets the offsets of a group without members the same way.
    assert_eq!(world.commit("", -1, "orders", 2), ErrorCode::NONE);
    let world = world.restarted();
    assert_eq!((world.fetch(GROUP, "orders"), world.state()), (2, "Empty"));
}

#[test]
fn commits_keep_a_member_alive() {
    let mut world = World::new();
    let (first, second) = world.two_stable_members();
    for offset in 0..10 {
        world.advance_ms(SESSION_MS as u64 - 1);
        let commits = [&first, &second].map(|member| world.commit(member, 1, "orders", offset));
        assert_eq!(commits, [ErrorCode::NONE; 2]);
    }
    assert_eq!(world.state(), "Stable");
}

#[test]
fn each_partition_of_a_commit_has_its_own_error() {
    let mut world = World::new();
    let topic = |name: &str, partitions: &[(i32, &str)]| OffsetCommitRequestTopic {
        name: Str::from(name),
        partitions: partitions
            .iter()
            .map(|(index, metadata)| OffsetCommitRequestPartition {
                partition_index: *index,
                committed_offset: 7,
                committed_metadata: Some(Str::from(*metadata)),
                ..Default::default()
            })
            .collect(),
        ..Default::default()
    };
    let request = OffsetCommitRequest {
        group_id: Str::from(GROUP),
        topics: vec![
            // The limit counts UTF-16 units: each of these characters is two.
            topic(
                "orders",
                &[
                    (0, ""),
                    (500, ""),
                    (1, &"x".repeat(4_097)),
                    (2, &"\u{1D11E}".repeat(2_048)),
                ],
            ),
            topic("no-such-topic", &[(0, "")]),
            topic("secret", &[(0, "")]),
        ],
        ..Default::default()
    };
    let token = world.send_commit(9, request);
    let response = world.committed(token);
    let errors: Vec<Vec<ErrorCode>> = response
        .topics
        .iter()
        .map(|topic| {
            topic
                .partitions
                .iter()
                .map(|p| ErrorCode(p.error_code))
                .collect()
        })
        .collect();
    let unknown = ErrorCode::UNKNOWN_TOPIC_OR_PARTITION;
    assert_eq!(
        errors,
        [
            vec![
                ErrorCode::NONE,
                unknown,
                ErrorCode::OFFSET_METADATA_TOO_LARGE,
                ErrorCode::NONE
            ],
            vec![unknown],
            vec![ErrorCode::TOPIC_AUTHORIZATION_FAILED],
        ]
    );
    // If nothing is left of the request, the group is not asked: no error of its is told.
    let hopeless = OffsetCommitRequest {
        group_id: Str::from(GROUP),
        generation_id_or_member_epoch: 9,
        topics: vec![topic("no-such-topic", &[(0, "")])],
        ..Default::default()
    };
    let token = world.send_commit(9, hopeless);
    assert_eq!(
        world.committed(token).topics[0].partitions[0].error_code,
        unknown.0
    );
}

#[test]
fn version_ten_names_topics_by_id() {
    let mut world = World::new();
    let mut request = commit_request("", -1, "orders", 42);
    request.topics[0].name = Str::default();
    request.topics.push(OffsetCommitRequestTopic {
        topic_id: Uuid::from_halves(1, 2),
        partitions: vec![OffsetCommitRequestPartition::default()],
        ..Default::default()
    });
    let token = world.send_commit(10, request);
    let response = world.committed(token);
    assert_eq!(response.topics[0].partitions[0].error_code, 0);
    assert_eq!(response.topics[1].topic_id, Uuid::from_halves(1, 2));
    assert_eq!(
        response.topics[1].partitions[0].error_code,
        ErrorCode::UNKNOWN_TOPIC_ID.0
    );

    let fetch = |ids: &[Uuid]| OffsetFetchRequestGroup {
        group_id: Str::from(GROUP),
        topics: Some(
            ids.iter()
                .map(|id| OffsetFetchRequestTopics {
                    topic_id: *id,
                    partition_indexes: vec![0, 1],
                    ..Default::default()
                })
                .collect(),
        ),
        ..Default::default()
    };
    let ids = [topic_id("orders"), Uuid::from_halves(1, 2)];
    let response = world.shard.offset_fetch(&fetch(&ids), false, &Topics, 10);
    let known = &response.topics[0].partitions;
    assert_eq!(
        (known[0].committed_offset, known[1].committed_offset),
        (42, -1)
    );
    assert_eq!((known[0].error_code, known[1].error_code), (0, 0));
    let unknown = &response.topics[1].partitions[0];
    assert_eq!(unknown.error_code, ErrorCode::UNKNOWN_TOPIC_ID.0);
    assert_eq!(
        (unknown.committed_offset, unknown.metadata.as_deref()),
        (-1, Some(""))
    );
}

#[test]
fn unknown_groups_and_partitions_have_no_offset_and_no_error() {
    let mut world = World::new();
    assert_eq!(
        world.fetch_partition("nobody", "orders", true),
        (-1, ErrorCode::NONE)
    );
    assert_eq!(world.commit("", -1, "orders", 5), ErrorCode::NONE);
    assert_eq!(
        world.fetch_partition(GROUP, "clicks", true),
        (-1, ErrorCode::NONE)
    );
    let all = OffsetFetchRequestGroup {
        group_id: Str::from(GROUP),
        topics: None,
        ..Default::default()
    };
    let response = world.shard.offset_fetch(&all, false, &Topics, 10);
    assert_eq!(response.topics.len(), 1);
    assert_eq!(response.topics[0].topic_id, topic_id("orders"));
    let partition = &response.topics[0].partitions[0];
    assert_eq!(
        (partition.committed_offset, partition.metadata.as_deref()),
        (5, Some("note"))
    );
    let nobody = OffsetFetchRequestGroup {
        group_id: Str::from("nobody"),
        topics: None,
        ..Default::default()
    };
    assert!(
        world
            .shard
            .offset_fetch(&nobody, false, &Topics, 8)
            .topics
            .is_empty()
    );
}

#[test]
fn requests_for_one_group_and_for_many_take_the_same_way() {
    let request = OffsetFetchRequest {
        group_id: Str::from(GROUP),
        topics: Some(vec![OffsetFetchRequestTopic {
            name: Str::from("orders"),
            partition_indexes: vec![0],
            ..Default::default()
        }]),
        ..Default::default()
    };
    let mut world = World::new();
    assert_eq!(world.commit("", -1, "orders", 5), ErrorCode::NONE);
    for version in 1..=7 {
        let groups = groups_of_offset_fetch(request.clone(), version);
        let answers = groups
            .iter()
            .map(|group| world.shard.offset_fetch(group, false, &Topics, version));
        let response = assemble_offset_fetch(answers.collect(), version);
        assert_eq!(response.topics[0].partitions[0].committed_offset, 5);
        assert!(response.groups.is_empty());
    }
    world.carry_out_unload();
    for version in 1..=7 {
        let groups = groups_of_offset_fetch(request.clone(), version);
        let answers = groups
            .iter()
            .map(|group| world.shard.offset_fetch(group, false, &Topics, version));
        let response = assemble_offset_fetch(answers.collect(), version);
        let wanted = ErrorCode::NOT_COORDINATOR.0;
        match version {
            1 => assert_eq!(response.topics[0].partitions[0].error_code, wanted),
            _ => assert_eq!((response.error_code, response.topics.len()), (wanted, 0)),
        }
    }
}

#[test]
fn offsets_under_way_are_not_seen_and_are_unstable() {
    let mut world = World::new();
    assert_eq!(world.commit("", -1, "orders", 1), ErrorCode::NONE);
    world.mode = LogMode::Held;
    let token = world.send_commit(9, commit_request("", -1, "orders", 2));
    assert_eq!(world.answer(token), None);
    assert_eq!(
        world.fetch_partition(GROUP, "orders", false),
        (1, ErrorCode::NONE)
    );
    assert_eq!(
        world.fetch_partition(GROUP, "orders", true),
        (-1, ErrorCode::UNSTABLE_OFFSET_COMMIT)
    );
    world.release();
    assert_eq!(world.committed(token).topics[0].partitions[0].error_code, 0);
    assert_eq!(
        world.fetch_partition(GROUP, "orders", true),
        (2, ErrorCode::NONE)
    );
}

#[test]
fn a_commit_that_is_not_stored_changes_nothing() {
    let mut world = World::new();
    assert_eq!(world.commit("", -1, "orders", 1), ErrorCode::NONE);
    for (told, error) in [
        (
            ErrorCode::NOT_ENOUGH_REPLICAS,
            ErrorCode::COORDINATOR_NOT_AVAILABLE,
        ),
        (
            ErrorCode::NOT_LEADER_OR_FOLLOWER,
            ErrorCode::NOT_COORDINATOR,
        ),
        (ErrorCode::KAFKA_STORAGE_ERROR, ErrorCode::NOT_COORDINATOR),
        (
            ErrorCode::MESSAGE_TOO_LARGE,
            ErrorCode::UNKNOWN_SERVER_ERROR,
        ),
    ] {
        world.mode = LogMode::Refusing(told);
        assert_eq!(world.commit("", -1, "orders", 2), error);
        assert_eq!(
            world.fetch_partition(GROUP, "orders", true),
            (1, ErrorCode::NONE)
        );
    }
}

#[test]
fn a_commit_that_takes_too_long_is_refused_and_still_counts_when_it_is_stored() {
    let mut world = World::new();
    world.mode = LogMode::Held;
    let token = world.send_commit(9, commit_request("", -1, "orders", 2));
    let (id, outcome) = world.held[0];
    let effects = world.shard.append_timed_out(id, world.clock);
    world.carry_out(effects);
    let error = world.committed(token).topics[0].partitions[0].error_code;
    assert_eq!(error, ErrorCode::COORDINATOR_NOT_AVAILABLE.0);
    assert_eq!(world.fetch(GROUP, "orders"), -1);
    assert_eq!(outcome, Ok(0));
    world.release();
    assert_eq!(world.fetch(GROUP, "orders"), 2);
}

#[test]
fn offsets_of_unused_topics_can_be_deleted() {
    let mut world = World::new();
    assert_eq!(
        delete(&mut world, GROUP, "orders").0,
        ErrorCode::GROUP_ID_NOT_FOUND
    );
    assert_eq!(
        delete(&mut world, "", "orders").0,
        ErrorCode::INVALID_GROUP_ID
    );
    let (first, _) = world.two_stable_members();
    assert_eq!(world.commit(&first, 1, "orders", 5), ErrorCode::NONE);
    assert_eq!(world.commit(&first, 1, "clicks", 6), ErrorCode::NONE);
    let subscribed = (ErrorCode::NONE, ErrorCode::GROUP_SUBSCRIBED_TO_TOPIC);
    assert_eq!(delete(&mut world, GROUP, "orders"), subscribed);
    assert_eq!(
        delete(&mut world, GROUP, "clicks"),
        (ErrorCode::NONE, ErrorCode::NONE)
    );
    let unknown = (ErrorCode::NONE, ErrorCode::UNKNOWN_TOPIC_OR_PARTITION);
    assert_eq!(delete(&mut world, GROUP, "no-topic"), unknown);
    assert_eq!(
        (world.fetch(GROUP, "orders"), world.fetch(GROUP, "clicks")),
        (5, -1)
    );
    let world = world.restarted();
    assert_eq!(
        (world.fetch(GROUP, "orders"), world.fetch(GROUP, "clicks")),
        (5, -1)
    );
}

#[test]
fn members_of_another_protocol_type_keep_all_their_offsets() {
    let mut world = World::new();
    let request = JoinGroupRequest {
        protocol_type: Str::from("connect"),
        ..join_request("")
    };
    let join = world.send_join(3, request);
    world.advance_ms(3_000);
    world.joined(join);
    assert_eq!(
        delete(&mut world, GROUP, "orders").0,
        ErrorCode::NON_EMPTY_GROUP
    );
}

#[test]
fn groups_without_members_are_deleted_with_their_offsets() {
    let mut world = World::new();
    let (first, second) = world.two_stable_members();
    assert_eq!(world.commit(&first, 1, "orders", 5), ErrorCode::NONE);
    let errors = delete_groups(&mut world, &[GROUP, "nobody", GROUP]);
    let (in_use, unknown) = (ErrorCode::NON_EMPTY_GROUP, ErrorCode::GROUP_ID_NOT_FOUND);
    assert_eq!(errors, [in_use, unknown, in_use]);
    world.leave(&[(&first, None), (&second, None)]);
    assert_eq!(world.state(), "Empty");
    assert_eq!(delete_groups(&mut world, &[GROUP]), [ErrorCode::NONE]);
    assert_eq!((world.state(), world.fetch(GROUP, "orders")), ("Dead", -1));
    let world = world.restarted();
    assert_eq!(
        (world.shard.group_count(), world.fetch(GROUP, "orders")),
        (0, -1)
    );
}

#[test]
fn a_deletion_covers_commits_that_are_under_way() {
    let mut world = World::new();
    assert_eq!(world.commit("", -1, "clicks", 1), ErrorCode::NONE);
    world.mode = LogMode::Held;
    let commit = world.send_commit(9, commit_request("", -1, "orders", 2));
    let token = world.token();
    let call = world.call(2);
    let effects = world.shard.delete_groups(&call, &[Str::from(GROUP)], token);
    world.carry_out(effects);
    // Gone for commands, still there for readers.
    assert_eq!(
        world.shard.describe_groups(&[Str::from(GROUP)], 6)[0].group_state,
        "Empty"
    );
    assert_eq!(world.fetch(GROUP, "clicks"), 1);
    world.release();
    world.committed(commit);
    let Some(Response::DeleteGroups(results)) = world.answer(token) else {
        panic!()
    };
    assert_eq!(results[0].error_code, 0);
    for world in [&world, &world.restarted()] {
        assert_eq!(world.shard.group_count(), 0);
        assert_eq!(
            (world.fetch(GROUP, "clicks"), world.fetch(GROUP, "orders")),
            (-1, -1)
        );
    }
}

#[test]
fn a_deletion_that_is_not_stored_leaves_the_group() {
    let mut world = World::new();
    assert_eq!(world.commit("", -1, "orders", 1), ErrorCode::NONE);
    world.mode = LogMode::Refusing(ErrorCode::NOT_ENOUGH_REPLICAS);
    assert_eq!(
        delete_groups(&mut world, &[GROUP]),
        [ErrorCode::COORDINATOR_NOT_AVAILABLE]
    );
    assert_eq!((world.state(), world.fetch(GROUP, "orders")), ("Empty", 1));
}

#[test]
fn large_deletions_are_answered_when_the_last_batch_is_stored() {
    let limits = GroupLimits {
        tombstones_per_append: 2,
        ..Default::default()
    };
    let mut world = World::with(GroupSettings::default(), limits);
    let mut request = commit_request("", -1, "orders", 1);
    request.topics[0].partitions = (0..5)
        .map(|partition_index| OffsetCommitRequestPartition {
            partition_index,
            ..Default::default()
        })
        .collect();
    let token = world.send_commit(9, request);
    world.committed(token);
    world.mode = LogMode::Held;
    let token = world.token();
    let call = world.call(2);
    let effects = world.shard.delete_groups(&call, &[Str::from(GROUP)], token);
    world.carry_out(effects);
    assert_eq!(world.held.len(), 3);
    let (first, outcome) = world.held.pop_front().unwrap();
    let effects = world.shard.append_done(first, outcome, world.clock);
    world.carry_out(effects);
    assert_eq!(world.answer(token), None);
    world.release();
    assert!(world.answer(token).is_some());
    assert_eq!(world.restarted().shard.group_count(), 0);
}

#[test]
fn offsets_of_simple_groups_expire_each_from_its_commit() {
    let mut world = World::new();
    assert_eq!(world.commit("", -1, "orders", 1), ErrorCode::NONE);
    world.advance_ms(RETENTION_MS / 2);
    assert_eq!(world.commit("", -1, "clicks", 2), ErrorCode::NONE);
    world.advance_ms(RETENTION_MS / 2 + SWEEP_MS);
    assert_eq!(
        (world.fetch(GROUP, "orders"), world.fetch(GROUP, "clicks")),
        (-1, 2)
    );
    world.advance_ms(RETENTION_MS / 2);
    assert_eq!((world.state(), world.fetch(GROUP, "clicks")), ("Dead", -1));
    assert_eq!(world.restarted().shard.group_count(), 0);
}

#[test]
fn offsets_of_an_empty_group_expire_from_when_it_became_empty() {
    let mut world = World::new();
    let (first, second) = world.two_stable_members();
    assert_eq!(world.commit(&first, 1, "orders", 5), ErrorCode::NONE);
    // Long after the commit the members still use the topic.
    for _ in 0..(RETENTION_MS / 3_600_000) + 24 {
        world.advance_ms(0);
        for member in [&first, &second] {
            assert_eq!(world.heartbeat(member, 1), ErrorCode::NONE);
        }
        let long = world.clock;
        world.clock.wall_ms = long.wall_ms + 3_600_000;
        world.advance_ms(1_000);
    }
    assert_eq!(world.fetch(GROUP, "orders"), 5);
    world.leave(&[(&first, None), (&second, None)]);
    world.advance_ms(RETENTION_MS - SWEEP_MS);
    assert_eq!(world.fetch(GROUP, "orders"), 5);
    world.advance_ms(2 * SWEEP_MS);
    assert_eq!((world.fetch(GROUP, "orders"), world.state()), (-1, "Dead"));
}

#[test]
fn a_stable_consumer_group_loses_only_topics_it_no_longer_reads() {
    let settings = GroupSettings {
        max_session_timeout_ms: i32::MAX,
        ..Default::default()
    };
    let mut world = World::with(settings, GroupLimits::default());
    let request = JoinGroupRequest {
        session_timeout_ms: i32::MAX,
        ..join_request("")
    };
    let join = world.send_join(3, request);
    world.advance_ms(3_000);
    let id = world.joined(join).member_id;
    let sync = world.sync(&id, 1, &[(&id, "a")]);
    world.synced(sync);
    assert_eq!(world.commit(&id, 1, "orders", 1), ErrorCode::NONE);
    assert_eq!(world.commit(&id, 1, "clicks", 2), ErrorCode::NONE);
    world.advance_ms(RETENTION_MS + SWEEP_MS);
    assert_eq!(world.state(), "Stable");
    assert_eq!(
        (world.fetch(GROUP, "orders"), world.fetch(GROUP, "clicks")),
        (1, -1)
    );
}

#[test]
fn an_explicit_retention_time_decides_alone() {
    let mut world = World::new();
    let mut request = commit_request("", -1, "orders", 1);
    request.retention_time_ms = 1_000;
    let token = world.send_commit(4, request);
    world.committed(token);
    let mut world = world.restarted();
    assert_eq!(world.fetch(GROUP, "orders"), 1);
    world.advance_ms(SWEEP_MS);
    assert_eq!((world.fetch(GROUP, "orders"), world.state()), (-1, "Dead"));
}

#[test]
fn a_deleted_topic_takes_its_offsets_along_but_not_its_successors() {
    let mut world = World::new();
    assert_eq!(world.commit("", -1, "orders", 1), ErrorCode::NONE);
    assert_eq!(world.commit("", -1, "clicks", 2), ErrorCode::NONE);
    let deleted = [
        (topic_id("orders"), Str::from("orders")),
        (Uuid::from_halves(9, 9), Str::from("clicks")),
    ];
    let effects = world.shard.on_topics_deleted(&deleted, world.clock);
    world.carry_out(effects);
    assert_eq!(
        (world.fetch(GROUP, "orders"), world.fetch(GROUP, "clicks")),
        (-1, 2)
    );
}

#[test]
fn offsets_per_group_have_a_limit() {
    let limits = GroupLimits {
        offsets_per_group: 1,
        ..Default::default()
    };
    let mut world = World::with(GroupSettings::default(), limits);
    assert_eq!(world.commit("", -1, "orders", 1), ErrorCode::NONE);
    assert_eq!(
        world.commit("", -1, "clicks", 1),
        ErrorCode::POLICY_VIOLATION
    );
    assert_eq!(world.commit("", -1, "orders", 2), ErrorCode::NONE);
}

#[test]
fn a_sweep_in_steps_sees_every_group_once_and_leaves_the_rest() {
    let limits = GroupLimits {
        groups_per_sweep_step: 3,
        ..Default::default()
    };
    let mut world = World::with(GroupSettings::default(), limits);
    for index in 0..20 {
        let mut request = commit_request("", -1, "orders", 1);
        request.group_id = Str::from(format!("old-{index}"));
        let token = world.send_commit(9, request);
        world.committed(token);
    }
    world.advance_ms(RETENTION_MS - SWEEP_MS / 2);
    for index in 0..20 {
        let mut request = commit_request("", -1, "orders", 1);
        request.group_id = Str::from(format!("new-{index}"));
        let token = world.send_commit(9, request);
        world.committed(token);
    }
    world.advance_ms(SWEEP_MS);
    let mut left: Vec<Str> = world.shard.groups.keys().cloned().collect();
    left.sort();
    assert_eq!(left.len(), 20, "{left:?}");
    assert!(left.iter().all(|id| id.starts_with("new-")), "{left:?}");
}

#[test]
fn a_group_made_and_deleted_again_while_it_is_deleted_stays_if_that_fails() {
    let mut world = World::new();
    assert_eq!(world.commit("", -1, "orders", 1), ErrorCode::NONE);
    world.mode = LogMode::Held;
    let delete = |world: &mut World| {
        let token = world.token();
        let call = world.call(2);
        let effects = world.shard.delete_groups(&call, &[Str::from(GROUP)], token);
        world.carry_out(effects);
        token
    };
    let first = delete(&mut world);
    let join = world.new_id();
    let second = delete(&mut world);
    let last = world.held.back_mut().unwrap();
    last.1 = Err(ErrorCode::NOT_ENOUGH_REPLICAS);
    world.log.truncate(world.log.len() - 1);
    world.release();
    let Some(Response::DeleteGroups(results)) = world.answer(first) else {
        panic!()
    };
    assert_eq!(results[0].error_code, 0);
    let Some(Response::DeleteGroups(results)) = world.answer(second) else {
        panic!()
    };
    assert_eq!(
        results[0].error_code,
        ErrorCode::COORDINATOR_NOT_AVAILABLE.0
    );
    assert_eq!(
        (world.state(), world.restarted().state()),
        ("Empty", "Empty")
    );
    assert_eq!(world.fetch(GROUP, "orders"), -1);
    let late = world.join(&join);
    assert_eq!(
        world.joined(late).error_code,
        ErrorCode::UNKNOWN_MEMBER_ID.0
    );
}
