//! Dynamic members: joining, syncing, heartbeats, leaving, and every timer of the rebalance.

use super::super::*;
use super::kit::*;
use crate::wire::messages::join_group_request::JoinGroupRequest;
use crate::wire::messages::sync_group_request::SyncGroupRequest;
use crate::wire::{ErrorCode, Str};

#[test]
fn a_lone_member_gets_an_id_a_generation_and_its_assignment() {
    let mut world = World::new();
    let id = world.new_id();
    assert!(id.starts_with("client-") && id.len() == 7 + 36, "{id}");
    assert_eq!(world.state(), "Empty");
    let join = world.join(&id);
    assert_eq!(world.state(), "PreparingRebalance");
    world.advance_ms(2_999);
    assert_eq!(
        world.answer(join),
        None,
        "the first join phase waits 3 s for more members"
    );
    world.advance_ms(1);
    let response = world.joined(join);
    assert_eq!((response.error_code, response.generation_id), (0, 1));
    assert_eq!(response.protocol_type.as_deref(), Some("consumer"));
    assert_eq!(response.protocol_name.as_deref(), Some("range"));
    assert_eq!((&response.leader, &response.member_id), (&id, &id));
    assert!(!response.skip_assignment);
    assert_eq!(response.members.len(), 1);
    assert_eq!(world.state(), "CompletingRebalance");
    assert_eq!(world.heartbeat(&id, 1), ErrorCode::NONE);
    let sync = world.sync(&id, 1, &[(&id, "everything")]);
    let response = world.synced(sync);
    assert_eq!(
        (response.error_code, &response.assignment[..]),
        (0, &b"everything"[..])
    );
    assert_eq!(response.protocol_name.as_deref(), Some("range"));
    assert_eq!(world.state(), "Stable");
}

#[test]
fn the_first_join_phase_grows_with_arrivals_and_ends_at_the_rebalance_timeout() {
    let mut world = World::new();
    let mut joins = Vec::new();
    // Someone new every 2 s: the delay of 3 s is extended, but not beyond 10 s.
    for _ in 0..7 {
        let request = JoinGroupRequest {
            rebalance_timeout_ms: 10_000,
            ..join_request("")
        };
        joins.push(world.send_join(3, request));
        world.advance_ms(2_000);
    }
    // Deadlines: 3 s, 6 s, 9 s, then the 1 s that remains of the 7 s: 10 s.
    let first = world.joined(joins[0]);
    assert_eq!((first.error_code, first.members.len()), (0, 5));
    for join in &joins[1..5] {
        assert_eq!(world.joined(*join).generation_id, 1);
    }
    // Those who came later began a rebalance, which waits for the rest.
    assert_eq!(world.state(), "PreparingRebalance");
    assert_eq!(world.answer(joins[5]), None);
}

#[test]
fn without_an_initial_delay_the_first_member_need_not_wait() {
    let settings = GroupSettings {
        initial_rebalance_delay_ms: 0,
        ..Default::default()
    };
    let mut world = World::with(settings, GroupLimits::default());
    let join = world.send_join(3, join_request(""));
    world.advance_ms(0);
    assert_eq!(world.joined(join).generation_id, 1);
}

#[test]
fn a_second_member_makes_a_new_generation_and_both_get_their_part() {
    let mut world = World::new();
    let first = world.new_id();
    let join = world.join(&first);
    world.advance_ms(3_000);
    world.joined(join);
    let sync = world.sync(&first, 1, &[(&first, "all")]);
    world.synced(sync);

    let second = world.new_id();
    assert_eq!(world.state(), "Stable", "an id alone disturbs nobody");
    let second_join = world.join(&second);
    assert_eq!(world.state(), "PreparingRebalance");
    assert_eq!(world.heartbeat(&first, 1), ErrorCode::REBALANCE_IN_PROGRESS);
    assert_eq!(world.answer(second_join), None);
    let first_join = world.join(&first);
    let (leader, follower) = (world.joined(first_join), world.joined(second_join));
    assert_eq!((leader.generation_id, follower.generation_id), (2, 2));
    assert_eq!(leader.members.len(), 2);
    assert_eq!((follower.members.len(), &follower.leader), (0, &first));

    let follower_sync = world.sync(&second, 2, &[]);
    assert_eq!(
        world.answer(follower_sync),
        None,
        "there is nothing to hand out yet"
    );
    let leader_sync = world.sync(&first, 2, &[(&first, "left"), (&second, "right")]);
    assert_eq!(world.synced(leader_sync).assignment, "left");
    assert_eq!(world.synced(follower_sync).assignment, "right");
    // A client that lost the answer asks again.
    let again = world.sync(&second, 2, &[]);
    assert_eq!(world.synced(again).assignment, "right");
}

#[test]
fn unknown_members_old_generations_and_wrong_protocols_are_refused() {
    let mut world = World::new();
    let (first, _) = world.two_stable_members();
    assert_eq!(world.heartbeat("stranger", 1), ErrorCode::UNKNOWN_MEMBER_ID);
    assert_eq!(world.heartbeat(&first, 0), ErrorCode::ILLEGAL_GENERATION);
    assert_eq!(world.heartbeat(&first, 1), ErrorCode::NONE);

    let stranger = world.sync("stranger", 1, &[]);
    assert_eq!(
        world.synced(stranger).error_code,
        ErrorCode::UNKNOWN_MEMBER_ID.0
    );
    let old = world.sync(&first, 0, &[]);
    assert_eq!(
        world.synced(old).error_code,
        ErrorCode::ILLEGAL_GENERATION.0
    );
    let token = world.token();
    let call = world.call(5);
    let other = SyncGroupRequest {
        protocol_name: Some(Str::from("sticky")),
        ..sync_request(&first, 1)
    };
    let effects = world.shard.sync_group(&call, other, token);
    world.carry_out(effects);
    assert_eq!(
        world.synced(token).error_code,
        ErrorCode::INCONSISTENT_GROUP_PROTOCOL.0
    );
    let token = world.token();
    let nameless = SyncGroupRequest {
        protocol_name: None,
        ..sync_request(&first, 1)
    };
    let effects = world.shard.sync_group(&call, nameless, token);
    world.carry_out(effects);
    assert_eq!(
        world.synced(token).error_code,
        ErrorCode::INCONSISTENT_GROUP_PROTOCOL.0
    );

    let join = world.join("stranger");
    assert_eq!(
        world.joined(join).error_code,
        ErrorCode::UNKNOWN_MEMBER_ID.0
    );
    let sticky = JoinGroupRequest {
        protocols: protocols(&["sticky"], &["orders"]),
        ..join_request("")
    };
    let join = world.send_join(9, sticky);
    assert_eq!(
        world.joined(join).error_code,
        ErrorCode::INCONSISTENT_GROUP_PROTOCOL.0
    );
    let connect = JoinGroupRequest {
        protocol_type: Str::from("connect"),
        ..join_request("")
    };
    let join = world.send_join(9, connect);
    assert_eq!(
        world.joined(join).error_code,
        ErrorCode::INCONSISTENT_GROUP_PROTOCOL.0
    );
    assert_eq!(world.state(), "Stable");
}

#[test]
fn joins_are_checked_before_a_group_is_made() {
    let mut world = World::new();
    let nameless = JoinGroupRequest {
        group_id: Str::default(),
        ..join_request("m")
    };
    let join = world.send_join(9, nameless);
    let response = world.joined(join);
    assert_eq!(response.error_code, ErrorCode::INVALID_GROUP_ID.0);
    assert_eq!(
        (
            response.member_id.as_str(),
            response.protocol_name.as_deref()
        ),
        ("m", None)
    );
    for session_timeout_ms in [5_999, 1_800_001, -1] {
        let join = world.send_join(
            9,
            JoinGroupRequest {
                session_timeout_ms,
                ..join_request("")
            },
        );
        assert_eq!(
            world.joined(join).error_code,
            ErrorCode::INVALID_SESSION_TIMEOUT.0
        );
    }
    let join = world.join("who");
    assert_eq!(
        world.joined(join).error_code,
        ErrorCode::UNKNOWN_MEMBER_ID.0
    );
    let empty = JoinGroupRequest {
        protocols: Vec::new(),
        ..join_request("")
    };
    let join = world.send_join(9, empty);
    assert_eq!(
        world.joined(join).error_code,
        ErrorCode::INCONSISTENT_GROUP_PROTOCOL.0
    );
    let endless = JoinGroupRequest {
        protocols: protocols(&vec!["range"; 257], &["orders"]),
        ..join_request("")
    };
    let join = world.send_join(9, endless);
    assert_eq!(world.joined(join).error_code, ErrorCode::INVALID_REQUEST.0);
    let malformed = JoinGroupRequest {
        protocol_type: Str::from("\u{fffd}".repeat(20_000)),
        ..join_request("")
    };
    let join = world.send_join(9, malformed);
    assert_eq!(world.joined(join).error_code, ErrorCode::INVALID_REQUEST.0);
    assert_eq!((world.shard.group_count(), world.log.len()), (0, 0));
}

#[test]
fn old_clients_join_without_a_round_for_the_id_and_never_see_a_null_protocol() {
    let mut world = World::new();
    let join = world.send_join(3, join_request(""));
    world.advance_ms(3_000);
    let response = world.joined(join);
    assert_eq!((response.error_code, response.generation_id), (0, 1));
    let join = world.send_join(6, join_request("stranger"));
    assert_eq!(world.joined(join).protocol_name.as_deref(), Some(""));
    let join = world.send_join(7, join_request("stranger"));
    assert_eq!(world.joined(join).protocol_name, None);
}

#[test]
fn version_zero_uses_the_session_timeout_for_the_rebalance() {
    let mut world = World::new();
    let request = JoinGroupRequest {
        rebalance_timeout_ms: -1,
        ..join_request("")
    };
    let first = world.send_join(0, request);
    world.advance_ms(3_000);
    let first = world.joined(first).member_id;
    let second = world.send_join(
        0,
        JoinGroupRequest {
            rebalance_timeout_ms: -1,
            ..join_request("")
        },
    );
    world.advance_ms(SESSION_MS as u64 - 1);
    assert_eq!(world.answer(second), None);
    assert_eq!(world.heartbeat(&first, 1), ErrorCode::REBALANCE_IN_PROGRESS);
    world.advance_ms(1);
    let response = world.joined(second);
    assert_eq!((response.generation_id, response.members.len()), (2, 1));
}

#[test]
fn a_silent_member_is_removed_after_its_session() {
    let mut world = World::new();
    let (first, second) = world.two_stable_members();
    world.advance_ms(SESSION_MS as u64 - 1);
    assert_eq!(world.heartbeat(&first, 1), ErrorCode::NONE);
    world.advance_ms(1);
    assert_eq!(
        world.state(),
        "PreparingRebalance",
        "the second was silent for its session"
    );
    assert_eq!(world.heartbeat(&second, 1), ErrorCode::UNKNOWN_MEMBER_ID);
    assert_eq!(world.heartbeat(&first, 1), ErrorCode::REBALANCE_IN_PROGRESS);
    let join = world.join(&first);
    let response = world.joined(join);
    assert_eq!((response.generation_id, response.members.len()), (2, 1));
}

#[test]
fn heartbeats_keep_a_member_for_hours() {
    let mut world = World::new();
    let (first, second) = world.two_stable_members();
    for _ in 0..1_000 {
        world.advance_ms(9_000);
        assert_eq!(world.heartbeat(&first, 1), ErrorCode::NONE);
        assert_eq!(world.heartbeat(&second, 1), ErrorCode::NONE);
    }
    assert_eq!((world.state(), world.generation()), ("Stable", 1));
    assert!(
        world.shard.work_in_progress().0 <= 4,
        "one timer a member, whatever the heartbeats"
    );
}

#[test]
fn members_that_do_not_rejoin_are_dropped_at_the_rebalance_timeout() {
    let mut world = World::new();
    let (first, second) = world.two_stable_members();
    let third = world.new_id();
    let third_join = world.join(&third);
    let second_join = world.join(&second);
    for _ in 0..12 {
        world.advance_ms(5_000);
        let _ = world.heartbeat(&first, 1);
    }
    let second_response = world.joined(second_join);
    let third_response = world.joined(third_join);
    assert_eq!(second_response.generation_id, 2);
    // The leader did not come: one of those who did leads, and only it is told of the members.
    assert_eq!(second_response.leader, third_response.leader);
    let told = |id: &Str| if second_response.leader == *id { 2 } else { 0 };
    assert_eq!(second_response.members.len(), told(&second));
    assert_eq!(third_response.members.len(), told(&third));
    assert_eq!(told(&second) + told(&third), 2);
    assert_eq!(world.heartbeat(&first, 1), ErrorCode::UNKNOWN_MEMBER_ID);
}

#[test]
fn a_leader_lost_during_sync_does_not_hold_the_others() {
    let mut world = World::new();
    let (first, second) = (world.new_id(), world.new_id());
    let joins = [world.join(&first), world.join(&second)];
    world.advance_ms(6_000);
    assert_eq!(world.joined(joins[0]).leader, first);
    world.joined(joins[1]);
    let sync = world.sync(&second, 1, &[]);
    world.advance_ms(SESSION_MS as u64);
    assert_eq!(
        world.synced(sync).error_code,
        ErrorCode::REBALANCE_IN_PROGRESS.0
    );
    assert_eq!(world.state(), "PreparingRebalance");
    let join = world.join(&second);
    let response = world.joined(join);
    assert_eq!(
        (response.generation_id, response.leader),
        (2, second.clone())
    );
    let sync = world.sync(&second, 2, &[(&second, "all")]);
    assert_eq!(world.synced(sync).assignment, "all");
}

#[test]
fn members_that_heartbeat_but_never_sync_are_removed() {
    let mut world = World::new();
    let (first, second) = (world.new_id(), world.new_id());
    let joins = [world.join(&first), world.join(&second)];
    world.advance_ms(6_000);
    for join in joins {
        world.joined(join);
    }
    let sync = world.sync(&first, 1, &[(&first, "a"), (&second, "b")]);
    assert_eq!(world.synced(sync).assignment, "a");
    assert_eq!(world.state(), "Stable");
    for _ in 0..REBALANCE_MS / 5_000 {
        let _ = world.heartbeat(&first, 1);
        let _ = world.heartbeat(&second, 1);
        world.advance_ms(5_000);
    }
    assert_eq!(world.state(), "PreparingRebalance");
    assert_eq!(world.heartbeat(&second, 1), ErrorCode::UNKNOWN_MEMBER_ID);
}

#[test]
fn a_new_member_whose_client_went_away_is_dropped_after_five_minutes() {
    let mut world = World::new();
    let (first, second) = world.two_stable_members();
    let long = JoinGroupRequest {
        rebalance_timeout_ms: 1_000_000,
        ..join_request("")
    };
    let lost = world.send_join(3, long);
    for _ in 0..(300_000 / 5_000) - 1 {
        world.advance_ms(5_000);
        let _ = world.heartbeat(&first, 1);
        let _ = world.heartbeat(&second, 1);
    }
    assert_eq!(world.answer(lost), None);
    world.advance_ms(5_000);
    let response = world.joined(lost);
    assert_eq!(
        (response.error_code, response.member_id.as_str()),
        (ErrorCode::UNKNOWN_MEMBER_ID.0, "")
    );
}

#[test]
fn a_pending_id_holds_the_rebalance_only_for_its_session() {
    let mut world = World::new();
    let (first, second) = world.two_stable_members();
    let pending = world.new_id();
    let join = world.join(&first);
    let other = world.join(&second);
    assert_eq!(world.answer(join), None, "somebody with an id is expected");
    world.advance_ms(SESSION_MS as u64);
    assert_eq!(world.joined(join).generation_id, 2);
    world.joined(other);
    let late = world.join(&pending);
    assert_eq!(
        world.joined(late).error_code,
        ErrorCode::UNKNOWN_MEMBER_ID.0
    );
}

#[test]
fn leaving_members_are_answered_one_by_one_and_the_rest_rebalance() {
    let mut world = World::new();
    let (first, second) = world.two_stable_members();
    let pending = world.new_id();
    let response = world.leave(&[(&second, None), ("stranger", None), (&pending, None)]);
    let errors: Vec<i16> = response
        .members
        .iter()
        .map(|member| member.error_code)
        .collect();
    assert_eq!(errors, [0, ErrorCode::UNKNOWN_MEMBER_ID.0, 0]);
    assert_eq!(response.error_code, 0);
    assert_eq!(world.state(), "PreparingRebalance");
    let join = world.join(&first);
    assert_eq!(world.joined(join).members.len(), 1);
    // The last one out leaves an empty generation in the log.
    let response = world.leave(&[(&first, None)]);
    assert_eq!(response.members[0].error_code, 0);
    assert_eq!((world.state(), world.generation()), ("Empty", 3));
    let restarted = world.restarted();
    assert_eq!((restarted.state(), restarted.generation()), ("Empty", 3));
    assert_eq!(world.heartbeat(&first, 3), ErrorCode::UNKNOWN_MEMBER_ID);
}

#[test]
fn a_member_that_leaves_with_its_request_parked_is_answered() {
    let mut world = World::new();
    let (first, second) = world.two_stable_members();
    let join = world.join(&first);
    let response = world.leave(&[(&first, None)]);
    assert_eq!(response.members[0].error_code, 0);
    assert_eq!(
        world.joined(join).error_code,
        ErrorCode::UNKNOWN_MEMBER_ID.0
    );
    let join = world.join(&second);
    world.joined(join);
    let third = world.new_id();
    let third_join = world.join(&third);
    let join = world.join(&second);
    world.joined(join);
    world.joined(third_join);
    let sync = world.sync(&third, 3, &[]);
    world.leave(&[(&third, None)]);
    assert_eq!(
        world.synced(sync).error_code,
        ErrorCode::UNKNOWN_MEMBER_ID.0
    );
}

#[test]
fn leave_before_version_three_says_the_error_at_the_top() {
    use crate::wire::messages::leave_group_request::LeaveGroupRequest;
    let mut world = World::new();
    let (first, _) = world.two_stable_members();
    for (member, expected) in [
        ("stranger", ErrorCode::UNKNOWN_MEMBER_ID),
        (&first, ErrorCode::NONE),
    ] {
        let token = world.token();
        let call = world.call(2);
        let request = LeaveGroupRequest {
            group_id: Str::from(GROUP),
            member_id: Str::from(member),
            ..Default::default()
        };
        let effects = world.shard.leave_group(&call, request, token);
        world.carry_out(effects);
        let Some(Response::LeaveGroup(response)) = world.answer(token) else {
            panic!()
        };
        assert_eq!(
            (ErrorCode(response.error_code), response.members.len()),
            (expected, 0)
        );
    }
}

#[test]
fn the_protocol_with_most_votes_that_all_support_wins() {
    let mut world = World::new();
    let with = |names: &[&str]| JoinGroupRequest {
        protocols: protocols(names, &["orders"]),
        ..join_request("")
    };
    let joins = [
        world.send_join(3, with(&["range", "sticky", "roundrobin"])),
        world.send_join(3, with(&["sticky", "roundrobin"])),
        world.send_join(3, with(&["roundrobin", "sticky", "range"])),
    ];
    world.advance_ms(6_000);
    for join in joins {
        assert_eq!(world.joined(join).protocol_name.as_deref(), Some("sticky"));
    }
    let range_only = world.send_join(3, with(&["range"]));
    assert_eq!(
        world.joined(range_only).error_code,
        ErrorCode::INCONSISTENT_GROUP_PROTOCOL.0
    );
    // One list that names a protocol twice does not count twice.
    let doubled = world.send_join(3, with(&["range", "range"]));
    assert_eq!(
        world.joined(doubled).error_code,
        ErrorCode::INCONSISTENT_GROUP_PROTOCOL.0
    );
}

#[test]
fn rejoining_without_news_is_answered_with_the_running_generation() {
    let mut world = World::new();
    let (first, second) = world.two_stable_members();
    let same = world.join(&second);
    let response = world.joined(same);
    assert_eq!((response.generation_id, response.members.len()), (1, 0));
    assert_eq!(world.state(), "Stable");
    // The leader's join asks for a new assignment even so.
    let leader = world.join(&first);
    assert_eq!(world.state(), "PreparingRebalance");
    let follower = world.join(&second);
    assert_eq!(world.joined(leader).members.len(), 2);
    assert_eq!(world.joined(follower).generation_id, 2);
    // In the sync phase the same holds, for both.
    let again = world.join(&first);
    assert_eq!(world.joined(again).members.len(), 2);
    let again = world.join(&second);
    assert_eq!(
        (world.joined(again).generation_id, world.state()),
        (2, "CompletingRebalance")
    );
    // New metadata begins a rebalance.
    let news = JoinGroupRequest {
        protocols: protocols(&["range"], &["clicks"]),
        ..join_request(&second)
    };
    let join = world.send_join(9, news);
    assert_eq!(
        (world.answer(join), world.state()),
        (None, "PreparingRebalance")
    );
}

#[test]
fn a_join_that_repeats_on_a_new_connection_answers_the_old_one_too() {
    let mut world = World::new();
    let (first, second) = world.two_stable_members();
    let old = world.join(&first);
    let new = world.join(&first);
    assert_eq!(
        world.joined(old).error_code,
        ErrorCode::REBALANCE_IN_PROGRESS.0
    );
    let other = world.join(&second);
    assert_eq!(world.joined(new).generation_id, 2);
    world.joined(other);
    let old = world.sync(&second, 2, &[]);
    let new = world.sync(&second, 2, &[]);
    assert_eq!(
        world.synced(old).error_code,
        ErrorCode::REBALANCE_IN_PROGRESS.0
    );
    let leader = world.sync(&first, 2, &[(&second, "b")]);
    assert_eq!(world.synced(new).assignment, "b");
    assert_eq!(
        world.synced(leader).assignment,
        "",
        "a member the leader forgot has nothing"
    );
}

#[test]
fn a_full_group_takes_nobody_more() {
    let settings = GroupSettings {
        max_size: 2,
        ..Default::default()
    };
    let mut world = World::with(settings, GroupLimits::default());
    let (first, _) = world.two_stable_members();
    let join = world.join("");
    assert_eq!(
        world.joined(join).error_code,
        ErrorCode::GROUP_MAX_SIZE_REACHED.0
    );
    assert_eq!(world.state(), "Stable");
    assert_eq!(world.heartbeat(&first, 1), ErrorCode::NONE);
}

#[test]
fn a_group_above_a_lowered_limit_shrinks_when_it_is_loaded() {
    let mut world = World::new();
    let (first, second) = world.two_stable_members();
    world.shard.set_settings(GroupSettings {
        max_size: 1,
        ..Default::default()
    });
    let mut world = world.restarted();
    assert_eq!(world.state(), "PreparingRebalance");
    let kept = world.join(&second);
    assert_eq!(world.answer(kept), None);
    let refused = world.join(&first);
    assert_eq!(
        world.joined(refused).error_code,
        ErrorCode::GROUP_MAX_SIZE_REACHED.0
    );
    assert_eq!(world.joined(kept).members.len(), 1);
}

#[test]
fn limits_of_groups_and_of_pending_ids_hold() {
    let limits = GroupLimits {
        groups: 1,
        pending_members_per_group: 2,
        ..Default::default()
    };
    let mut world = World::with(GroupSettings::default(), limits);
    world.new_id();
    world.new_id();
    let third = world.join("");
    assert_eq!(
        world.joined(third).error_code,
        ErrorCode::GROUP_MAX_SIZE_REACHED.0
    );
    let elsewhere = JoinGroupRequest {
        group_id: Str::from("others"),
        ..join_request("")
    };
    let join = world.send_join(9, elsewhere);
    assert_eq!(
        world.joined(join).error_code,
        ErrorCode::GROUP_MAX_SIZE_REACHED.0
    );
    let mut request = commit_request("", -1, "orders", 1);
    request.group_id = Str::from("others");
    let token = world.send_commit(9, request);
    let error = world.committed(token).topics[0].partitions[0].error_code;
    assert_eq!(error, ErrorCode::POLICY_VIOLATION.0);
}

#[test]
fn nothing_is_answered_from_a_shard_that_loads_or_has_gone() {
    let mut world = World::new();
    let (first, second) = world.two_stable_members();
    let parked = world.join(&first);
    let effects = world.shard.unload();
    world.carry_out(effects);
    assert_eq!(
        world.joined(parked).error_code,
        ErrorCode::NOT_COORDINATOR.0
    );
    assert_eq!(world.heartbeat(&second, 1), ErrorCode::NOT_COORDINATOR);
    let join = world.join(&second);
    assert_eq!(world.joined(join).error_code, ErrorCode::NOT_COORDINATOR.0);
    assert_eq!(world.shard.next_deadline(), None);
    // A load that was still under way ends without effect.
    let record = world.log[0].0.clone();
    world
        .shard
        .replay_record(0, -1, &record.key, record.value.as_ref())
        .unwrap();
    let effects = world.shard.finish_loading(world.clock);
    assert!(effects.is_empty());
    assert_eq!(
        (world.shard.phase(), world.shard.group_count()),
        (Phase::Unloaded, 0)
    );

    let settings = GroupSettings::default();
    let mut loading = World::new();
    loading.shard = GroupCoordinatorShard::new(settings, GroupLimits::default());
    assert_eq!(
        loading.heartbeat("m", 1),
        ErrorCode::NONE,
        "members keep their place"
    );
    let join = loading.join("");
    assert_eq!(
        loading.joined(join).error_code,
        ErrorCode::COORDINATOR_LOAD_IN_PROGRESS.0
    );
    let sync = loading.sync("m", 1, &[]);
    assert_eq!(
        loading.synced(sync).error_code,
        ErrorCode::COORDINATOR_LOAD_IN_PROGRESS.0
    );
    assert_eq!(
        loading.commit("m", 1, "orders", 1),
        ErrorCode::COORDINATOR_LOAD_IN_PROGRESS
    );
    assert_eq!(
        loading.shard.list_groups(&[], &[]),
        Err(ErrorCode::COORDINATOR_LOAD_IN_PROGRESS)
    );
}

#[test]
fn sessions_that_end_together_do_not_hold_the_core() {
    let mut world = World::new();
    for index in 0..1_500 {
        let request = JoinGroupRequest {
            group_id: Str::from(format!("group-{index}")),
            ..join_request("")
        };
        world.send_join(3, request);
    }
    world.clock.now += std::time::Duration::from_secs(4);
    let before = world.answered;
    let effects = world.shard.on_tick(world.clock);
    world.carry_out(effects);
    assert_eq!(world.answered - before, 1_000);
    assert!(world.shard.next_deadline().unwrap() <= world.clock.now);
    let effects = world.shard.on_tick(world.clock);
    world.carry_out(effects);
    assert_eq!(world.answered - before, 1_500);
}
