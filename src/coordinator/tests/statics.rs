//! Static members: coming back under a new id without a rebalance, fencing, leaving by instance.

use super::kit::*;
use crate::wire::messages::heartbeat_request::HeartbeatRequest;
use crate::wire::messages::join_group_request::JoinGroupRequest;
use crate::wire::{ErrorCode, Str};

/// Two static members "i1" (leads) and "i2" in generation 1, with assignments "a" and "b".
fn two_static_members(world: &mut World) -> (Str, Str) {
    let first = world.send_join(9, static_join("", "i1"));
    let second = world.send_join(9, static_join("", "i2"));
    world.advance_ms(6_000);
    let first = world.joined(first);
    assert_eq!((first.error_code, first.members.len()), (0, 2));
    assert!(first.member_id.starts_with("i1-"), "{}", first.member_id);
    let second = world.joined(second);
    let (first, second) = (first.member_id, second.member_id);
    let follower = world.sync(&second, 1, &[]);
    let leader = world.sync(&first, 1, &[(&first, "a"), (&second, "b")]);
    assert_eq!(world.synced(leader).assignment, "a");
    assert_eq!(world.synced(follower).assignment, "b");
    (first, second)
}

#[test]
fn a_static_member_that_bounces_keeps_its_part_without_a_rebalance() {
    let mut world = World::new();
    let (_, old) = two_static_members(&mut world);
    let join = world.send_join(9, static_join("", "i2"));
    let response = world.joined(join);
    assert_eq!((response.error_code, response.generation_id), (0, 1));
    assert!(
        !response.skip_assignment,
        "only a leader has an assignment to skip"
    );
    assert_ne!(response.member_id, old);
    assert_eq!(world.state(), "Stable");
    let sync = world.sync(&response.member_id, 1, &[]);
    assert_eq!(world.synced(sync).assignment, "b");
    assert_eq!(world.heartbeat(&old, 1), ErrorCode::UNKNOWN_MEMBER_ID);
    let restarted = world.restarted();
    assert!(restarted.shard.groups[GROUP].has_member(&response.member_id));
    assert_eq!(
        restarted.shard.groups[GROUP]
            .member(&response.member_id)
            .unwrap()
            .assignment,
        "b"
    );
}

#[test]
fn a_static_leader_that_bounces_is_told_to_skip_the_assignment() {
    let mut world = World::new();
    let (old, _) = two_static_members(&mut world);
    let join = world.send_join(9, static_join("", "i1"));
    let response = world.joined(join);
    assert!(response.skip_assignment);
    assert_eq!(
        (&response.leader, response.members.len()),
        (&response.member_id, 2)
    );
    // Before version 9 it is told of its former id, so that it does not assign either.
    let now = response.member_id;
    let join = world.send_join(8, static_join("", "i1"));
    let response = world.joined(join);
    assert_eq!((&response.leader, response.members.len()), (&now, 0));
    assert!(!response.skip_assignment);
    assert_ne!(old, now);
    assert_eq!(world.state(), "Stable");
}

#[test]
fn the_former_self_of_a_static_member_is_fenced() {
    let mut world = World::new();
    let (_, old) = two_static_members(&mut world);
    let join = world.send_join(9, static_join("", "i2"));
    world.joined(join);
    let call = world.call(4);
    let request = HeartbeatRequest {
        group_id: Str::from(GROUP),
        member_id: old.clone(),
        group_instance_id: Some(Str::from("i2")),
        generation_id: 1,
        ..Default::default()
    };
    let response = world.shard.heartbeat(&call, &request);
    assert_eq!(response.error_code, ErrorCode::FENCED_INSTANCE_ID.0);
    let join = world.send_join(9, static_join(&old, "i2"));
    assert_eq!(
        world.joined(join).error_code,
        ErrorCode::FENCED_INSTANCE_ID.0
    );
    let mut commit = commit_request(&old, 1, "orders", 5);
    commit.group_instance_id = Some(Str::from("i2"));
    let token = world.send_commit(9, commit);
    let error = world.committed(token).topics[0].partitions[0].error_code;
    assert_eq!(error, ErrorCode::FENCED_INSTANCE_ID.0);
    let unknown = world.send_join(9, static_join(&old, "i3"));
    assert_eq!(
        world.joined(unknown).error_code,
        ErrorCode::UNKNOWN_MEMBER_ID.0
    );
}

#[test]
fn a_parked_request_of_the_former_self_is_answered_when_it_is_replaced() {
    let mut world = World::new();
    let (first, second) = two_static_members(&mut world);
    let rejoin = world.send_join(9, static_join(&first, "i1"));
    assert_eq!(world.state(), "PreparingRebalance");
    let bounced = world.send_join(9, static_join("", "i1"));
    let fenced = world.joined(rejoin);
    assert_eq!(
        (fenced.error_code, fenced.member_id),
        (ErrorCode::FENCED_INSTANCE_ID.0, first)
    );
    assert_eq!(fenced.protocol_name, None);
    assert_eq!(world.answer(bounced), None);
    let other = world.send_join(9, static_join(&second, "i2"));
    assert_eq!(world.joined(bounced).generation_id, 2);
    assert_eq!(world.joined(other).generation_id, 2);
}

#[test]
fn a_bounce_during_sync_begins_a_new_generation() {
    let mut world = World::new();
    let first = world.send_join(9, static_join("", "i1"));
    let second = world.send_join(9, static_join("", "i2"));
    world.advance_ms(6_000);
    let (first, second) = (
        world.joined(first).member_id,
        world.joined(second).member_id,
    );
    let sync = world.sync(&second, 1, &[]);
    let bounced = world.send_join(9, static_join("", "i2"));
    assert_eq!(
        world.synced(sync).error_code,
        ErrorCode::FENCED_INSTANCE_ID.0
    );
    assert_eq!(world.state(), "PreparingRebalance");
    let late = world.sync(&first, 1, &[(&first, "a"), (&second, "b")]);
    assert_eq!(
        world.synced(late).error_code,
        ErrorCode::REBALANCE_IN_PROGRESS.0
    );
    let rejoin = world.send_join(9, static_join(&first, "i1"));
    assert_eq!(world.joined(rejoin).generation_id, 2);
    assert_eq!(world.joined(bounced).generation_id, 2);
}

#[test]
fn a_bounce_that_changes_the_protocol_rebalances() {
    let mut world = World::new();
    let with = |names: &[&str], instance: &str| JoinGroupRequest {
        protocols: protocols(names, &["orders"]),
        ..static_join("", instance)
    };
    let join = world.send_join(9, with(&["range", "sticky"], "i1"));
    world.advance_ms(3_000);
    let id = world.joined(join).member_id;
    let sync = world.sync(&id, 1, &[(&id, "a")]);
    world.synced(sync);
    let bounced = world.send_join(9, with(&["sticky", "range"], "i1"));
    let response = world.joined(bounced);
    assert_eq!(
        (response.generation_id, response.protocol_name.as_deref()),
        (2, Some("sticky"))
    );
    assert_eq!(world.state(), "CompletingRebalance");
}

#[test]
fn absent_static_members_stay_through_a_rebalance_until_their_session_ends() {
    let mut world = World::new();
    let (first, second) = two_static_members(&mut world);
    let rejoin = world.send_join(9, static_join(&first, "i1"));
    for _ in 0..12 {
        world.advance_ms(5_000);
        let call = world.call(4);
        let request = HeartbeatRequest {
            group_id: Str::from(GROUP),
            member_id: second.clone(),
            generation_id: 1,
            ..Default::default()
        };
        let _ = world.shard.heartbeat(&call, &request);
    }
    let response = world.joined(rejoin);
    assert_eq!((response.generation_id, response.members.len()), (2, 2));
    let sync = world.sync(&first, 2, &[(&first, "a"), (&second, "b")]);
    assert_eq!(world.synced(sync).assignment, "a");
}

#[test]
fn a_group_of_absent_static_members_waits_until_their_sessions_end() {
    let mut world = World::new();
    let (first, second) = two_static_members(&mut world);
    let dynamic = world.new_id();
    let join = world.join(&dynamic);
    world.leave(&[(&dynamic, None)]);
    world.joined(join);
    assert_eq!(world.state(), "PreparingRebalance");
    // Neither comes back; both sessions end long before the rebalance timeout.
    world.advance_ms(SESSION_MS as u64);
    assert_eq!((world.state(), world.generation()), ("Empty", 2));
    assert_eq!(world.heartbeat(&first, 1), ErrorCode::UNKNOWN_MEMBER_ID);
    assert_eq!(world.heartbeat(&second, 1), ErrorCode::UNKNOWN_MEMBER_ID);
}

#[test]
fn an_administrator_removes_a_static_member_by_its_instance_id() {
    let mut world = World::new();
    let (first, _) = two_static_members(&mut world);
    let response = world.leave(&[("", Some("i2")), ("", Some("i9")), ("", None)]);
    let errors: Vec<i16> = response
        .members
        .iter()
        .map(|member| member.error_code)
        .collect();
    let unknown = ErrorCode::UNKNOWN_MEMBER_ID.0;
    assert_eq!(errors, [0, unknown, unknown]);
    let response = world.leave(&[(&first, Some("i2")), ("x", Some("i1"))]);
    let errors: Vec<i16> = response
        .members
        .iter()
        .map(|member| member.error_code)
        .collect();
    assert_eq!(errors, [unknown, ErrorCode::FENCED_INSTANCE_ID.0]);
    assert_eq!(world.state(), "PreparingRebalance");
}

#[test]
fn a_swap_that_cannot_be_stored_is_taken_back() {
    let mut world = World::new();
    let (_, old) = two_static_members(&mut world);
    world.mode = LogMode::Refusing(ErrorCode::NOT_ENOUGH_REPLICAS);
    let join = world.send_join(9, static_join("", "i2"));
    let response = world.joined(join);
    assert_eq!(response.error_code, ErrorCode::COORDINATOR_NOT_AVAILABLE.0);
    assert_eq!(response.member_id, "");
    assert_eq!(
        world.heartbeat(&old, 1),
        ErrorCode::NONE,
        "the former self still counts"
    );
    world.mode = LogMode::Immediate;
    let sync = world.sync(&old, 1, &[]);
    assert_eq!(world.synced(sync).assignment, "b");
}

#[test]
fn a_swap_under_way_when_the_next_generation_begins_is_answered_once() {
    let mut world = World::new();
    let (first, _) = two_static_members(&mut world);
    world.mode = LogMode::Held;
    let bounced = world.send_join(9, static_join("", "i2"));
    assert_eq!(world.answer(bounced), None);
    // The leader rebalances before the swap is stored; the parked join takes part.
    let leader = world.send_join(9, static_join(&first, "i1"));
    assert_eq!(world.joined(leader).generation_id, 2);
    assert_eq!(world.joined(bounced).generation_id, 2);
    world.release();
    assert_eq!(world.answer(bounced), None);
    assert_eq!(world.state(), "CompletingRebalance");
}

#[test]
fn absent_static_members_without_a_rebalance_timeout_do_not_spin() {
    let mut world = World::new();
    let request = JoinGroupRequest {
        rebalance_timeout_ms: 0,
        ..static_join("", "i1")
    };
    let join = world.send_join(9, request);
    world.advance_ms(3_000);
    let id = world.joined(join).member_id;
    // The sync phase of such a member is over at once.
    assert_eq!(world.heartbeat(&id, 1), ErrorCode::UNKNOWN_MEMBER_ID);
    let request = JoinGroupRequest {
        rebalance_timeout_ms: 0,
        ..static_join("", "i1")
    };
    let join = world.send_join(9, request.clone());
    world.advance_ms(3_000);
    let _ = world.joined(join);
    let mut world = World::new();
    let join = world.send_join(9, static_join("", "i1"));
    world.advance_ms(3_000);
    let id = world.joined(join).member_id;
    let sync = world.sync(&id, 1, &[(&id, "a")]);
    world.synced(sync);
    let join = world.send_join(9, request);
    let id = world.joined(join).member_id;
    let other = world.new_id();
    let join = world.join(&other);
    world.leave(&[(&other, None)]);
    world.joined(join);
    for _ in 0..20 {
        let effects = world.shard.on_tick(world.clock);
        world.carry_out(effects);
    }
    assert_eq!(world.state(), "PreparingRebalance");
    world.advance_ms(SESSION_MS as u64);
    assert_eq!(world.state(), "Empty");
    assert_eq!(world.heartbeat(&id, 1), ErrorCode::UNKNOWN_MEMBER_ID);
}
