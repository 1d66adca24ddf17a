//! BrokerHeartbeat: the states of a broker and what moves it between them.

use super::*;
use crate::cluster::test_kit::{Model, TIMEOUT, directory};
use std::time::Duration;

#[derive(Clone, Copy, Default)]
struct Beat {
    id: i32,
    /// How far behind the newest record it is.
    lag: i64,
    fence: bool,
    stop: bool,
}

fn beat(model: &mut Model, beat: Beat) -> (usize, BrokerHeartbeatResponse) {
    let request = BrokerHeartbeatRequest {
        broker_id: beat.id,
        broker_epoch: model.epoch(beat.id),
        current_metadata_offset: model.image.offset() - beat.lag,
        want_fence: beat.fence,
        want_shut_down: beat.stop,
        ..Default::default()
    };
    send(model, &request)
}

fn send(model: &mut Model, request: &BrokerHeartbeatRequest) -> (usize, BrokerHeartbeatResponse) {
    let outcome = decide(
        &model.image,
        &model.config,
        &mut model.sessions,
        model.now,
        request,
    );
    model.apply(&outcome.records);
    if outcome.is_stopping {
        let offset = model.image.offset();
        model
            .sessions
            .stops_after(NodeId(request.broker_id), offset);
    }
    (outcome.records.len(), outcome.response)
}

fn told(response: &BrokerHeartbeatResponse) -> (bool, bool, bool) {
    (
        response.is_caught_up,
        response.is_fenced,
        response.should_shut_down,
    )
}

#[test]
fn a_broker_is_unfenced_when_it_has_applied_its_registration_and_wants_to() {
    let mut model = Model::with_brokers(1);
    model.broker(2, true);
    let (records, response) = beat(
        &mut model,
        Beat {
            id: 2,
            lag: 1,
            ..Beat::default()
        },
    );
    assert_eq!((records, told(&response)), (0, (false, true, false)));
    let want = Beat {
        id: 2,
        fence: true,
        ..Beat::default()
    };
    let (records, response) = beat(&mut model, want);
    assert_eq!((records, told(&response)), (0, (true, true, false)));
    let (records, response) = beat(
        &mut model,
        Beat {
            id: 2,
            ..Beat::default()
        },
    );
    assert_eq!((records, told(&response)), (1, (true, false, false)));
    assert!(model.image.can_lead(NodeId(2)));
    let (records, _) = beat(
        &mut model,
        Beat {
            id: 2,
            ..Beat::default()
        },
    );
    assert_eq!(records, 0);
    let (records, response) = beat(&mut model, want);
    assert_eq!((records, told(&response)), (1, (true, true, false)));
}

#[test]
fn an_epoch_that_is_not_the_registered_one_is_stale() {
    let mut model = Model::with_brokers(1);
    for (broker_id, broker_epoch) in [(1, model.epoch(1) + 1), (9, 0)] {
        let request = BrokerHeartbeatRequest {
            broker_id,
            broker_epoch,
            ..Default::default()
        };
        let (records, response) = send(&mut model, &request);
        assert_eq!((records, response.error_code), (0, 77));
        assert!(response.is_fenced);
    }
}

#[test]
fn a_controlled_shutdown_waits_until_the_others_know_the_new_leaders() {
    let mut model = Model::with_brokers(3);
    model.partition(&[1, 2], &[1, 2], 1);
    for id in [2, 3] {
        beat(
            &mut model,
            Beat {
                id,
                ..Beat::default()
            },
        );
    }
    let stop = Beat {
        id: 1,
        stop: true,
        ..Beat::default()
    };
    let (records, response) = beat(&mut model, stop);
    assert_eq!((records, told(&response)), (2, (true, false, false)));
    assert_eq!(model.told(0), (2, vec![2], vec![]));
    let moved = model.image.offset();
    // Broker 2 has it, broker 3 has not.
    beat(
        &mut model,
        Beat {
            id: 2,
            ..Beat::default()
        },
    );
    assert_eq!(told(&beat(&mut model, stop).1), (true, false, false));
    assert_eq!(model.image.offset(), moved, "nothing more is written");
    beat(
        &mut model,
        Beat {
            id: 3,
            ..Beat::default()
        },
    );
    let (records, response) = beat(&mut model, stop);
    assert_eq!((records, told(&response)), (1, (true, true, true)));
    assert!(model.image.broker(NodeId(1)).unwrap().fenced);
    let broker = model.image.broker(NodeId(1)).unwrap().clone();
    assert!(
        !model.sessions.is_alive(&broker, model.now),
        "its next life may register at once"
    );
}

#[test]
fn a_broker_that_leads_nothing_or_is_fenced_may_stop_at_once() {
    let mut model = Model::with_brokers(2);
    model.partition(&[1, 2], &[1, 2], 1);
    let (records, response) = beat(
        &mut model,
        Beat {
            id: 2,
            stop: true,
            ..Beat::default()
        },
    );
    assert_eq!((records, told(&response)), (2, (true, true, true)));
    assert_eq!(model.told(0), (1, vec![1], vec![]));
    let (records, response) = beat(
        &mut model,
        Beat {
            id: 2,
            stop: true,
            ..Beat::default()
        },
    );
    assert_eq!((records, told(&response)), (0, (true, true, true)));
    let both = Beat {
        id: 1,
        stop: true,
        fence: true,
        ..Beat::default()
    };
    assert_eq!(told(&beat(&mut model, both).1), (true, true, true));
}

#[test]
fn a_lone_broker_stops_on_its_second_word() {
    let mut model = Model::with_brokers(1).with_eligible();
    model.partition(&[1], &[1], 1);
    let stop = Beat {
        id: 1,
        stop: true,
        ..Beat::default()
    };
    assert!(!beat(&mut model, stop).1.should_shut_down);
    assert_eq!(model.told(0), (-1, vec![], vec![1]));
    assert!(beat(&mut model, stop).1.should_shut_down);
}

#[test]
fn directories_of_a_heartbeat_are_registered() {
    let mut model = Model::with_brokers(2);
    model.partition(&[1, 2], &[1, 2], 1);
    let request = BrokerHeartbeatRequest {
        broker_id: 1,
        broker_epoch: model.epoch(1),
        current_metadata_offset: model.image.offset(),
        offline_log_dirs: vec![directory(1)],
        cordoned_log_dirs: Some(vec![directory(1)]),
        ..Default::default()
    };
    let (records, response) = send(&mut model, &request);
    assert_eq!(response.error_code, 0);
    assert_eq!(
        records, 2,
        "leader and cordon; a broker without directories stops by itself"
    );
    assert_eq!(model.told(0), (2, vec![2], vec![]));
}

#[test]
fn a_heartbeat_that_waits_for_its_turn_keeps_the_session() {
    let mut model = Model::with_brokers(2);
    let image = model.image.clone();
    let broker = image.broker(NodeId(2)).unwrap();
    for _ in 0..4 {
        model.now += TIMEOUT / 3;
        model.sessions.arrived(broker, model.now);
        beat(
            &mut model,
            Beat {
                id: 1,
                ..Beat::default()
            },
        );
        assert_eq!(model.sessions.expired(&image, model.now), None);
    }
    assert!(model.sessions.is_alive(broker, model.now));
}

#[test]
fn sessions_run_out_one_at_a_time_and_not_while_the_controller_stands_still() {
    let mut model = Model::with_brokers(3);
    let step = |model: &mut Model, ms| {
        model.now += Duration::from_millis(ms);
        let (image, now) = (model.image.clone(), model.now);
        model.sessions.expired(&image, now)
    };
    for _ in 0..3 {
        assert_eq!(step(&mut model, 3000), None);
    }
    beat(
        &mut model,
        Beat {
            id: 2,
            ..Beat::default()
        },
    );
    assert_eq!(step(&mut model, 1), Some(NodeId(1)));
    model.broker(1, true);
    assert_eq!(step(&mut model, 1), Some(NodeId(3)));
    model.broker(3, true);
    assert_eq!(step(&mut model, 1), None);
    // Late by more than half a session: whoever waits to be heard gets another chance.
    model.now += TIMEOUT * 2;
    let now = model.now;
    model.sessions.was_late(TIMEOUT, now);
    assert_eq!(step(&mut model, TIMEOUT.as_millis() as u64), None);
    model.sessions.was_late(Duration::from_millis(30), now);
    assert_eq!(step(&mut model, 1), Some(NodeId(2)));
}
