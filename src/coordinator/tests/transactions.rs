//! Offsets committed inside transactions: pending until their marker, gone with their group.

use super::super::*;
use super::kit::*;
use super::offsets::delete_groups;
use crate::log::VerificationGuard;
use crate::wire::messages::txn_offset_commit_request::{
    TxnOffsetCommitRequest, TxnOffsetCommitRequestPartition, TxnOffsetCommitRequestTopic,
};
use crate::wire::{ErrorCode, Str};

fn txn_commit(world: &mut World, producer_id: i64, offset: i64) -> ErrorCode {
    let token = world.token();
    let call = world.call(5);
    let request = TxnOffsetCommitRequest {
        transactional_id: Str::from("t"),
        group_id: Str::from(GROUP),
        producer_id,
        topics: vec![TxnOffsetCommitRequestTopic {
            name: Str::from("orders"),
            partitions: vec![TxnOffsetCommitRequestPartition {
                committed_offset: offset,
                ..Default::default()
            }],
            ..Default::default()
        }],
        ..Default::default()
    };
    let effects =
        world
            .shard
            .txn_offset_commit(&call, request, VerificationGuard::NONE, &Topics, token);
    world.carry_out(effects);
    let Some(Response::TxnOffsetCommit(response)) = world.answer(token) else {
        panic!()
    };
    ErrorCode(response.topics[0].partitions[0].error_code)
}

#[test]
fn transactional_offsets_show_with_their_marker() {
    let mut world = World::new();
    assert_eq!(txn_commit(&mut world, 7, 10), ErrorCode::NONE);
    assert_eq!(
        world.fetch_partition(GROUP, "orders", false),
        (-1, ErrorCode::NONE)
    );
    assert_eq!(
        world.fetch_partition(GROUP, "orders", true),
        (-1, ErrorCode::UNSTABLE_OFFSET_COMMIT)
    );
    let mut restarted = world.restarted();
    for world in [&mut world, &mut restarted] {
        world.shard.complete_transaction(7, true);
        assert_eq!(
            world.fetch_partition(GROUP, "orders", true),
            (10, ErrorCode::NONE)
        );
    }
    assert_eq!(txn_commit(&mut world, 8, 20), ErrorCode::NONE);
    world.shard.complete_transaction(8, false);
    assert_eq!(
        world.fetch_partition(GROUP, "orders", true),
        (10, ErrorCode::NONE)
    );
}

#[test]
fn a_later_plain_commit_is_not_undone_by_an_older_transaction() {
    let mut world = World::new();
    assert_eq!(txn_commit(&mut world, 7, 10), ErrorCode::NONE);
    assert_eq!(world.commit("", -1, "orders", 30), ErrorCode::NONE);
    world.shard.complete_transaction(7, true);
    assert_eq!(world.fetch(GROUP, "orders"), 30);
}

#[test]
fn deleting_a_group_ends_its_pending_offsets() {
    let mut world = World::new();
    assert_eq!(txn_commit(&mut world, 7, 10), ErrorCode::NONE);
    assert_eq!(delete_groups(&mut world, &[GROUP]), [ErrorCode::NONE]);
    world.shard.complete_transaction(7, true);
    assert_eq!(world.fetch(GROUP, "orders"), -1);
    assert_eq!(world.restarted().shard.group_count(), 0);
}
