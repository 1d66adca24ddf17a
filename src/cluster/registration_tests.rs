//! BrokerRegistration: every check in its order, epochs, and what a last life leaves behind.

use super::*;
use crate::cluster::test_kit::{Model, TIMEOUT, directory};
use crate::wire::messages::broker_registration_request::Listener;
use std::time::Duration;

fn request(id: i32) -> BrokerRegistrationRequest {
    BrokerRegistrationRequest {
        broker_id: id,
        cluster_id: "c".into(),
        incarnation_id: Uuid::from_halves(77, id as u64),
        listeners: vec![Listener {
            name: "PLAINTEXT".into(),
            host: "h".into(),
            port: 9092,
            ..Default::default()
        }],
        features: vec![Feature {
            name: METADATA_VERSION.into(),
            min_supported_version: 30,
            max_supported_version: 33,
            ..Default::default()
        }],
        rack: Some("r".into()),
        log_dirs: vec![directory(id)],
        previous_broker_epoch: -1,
        ..Default::default()
    }
}

fn ask(model: &mut Model, request: &BrokerRegistrationRequest) -> (Vec<MetadataRecord>, i16, i64) {
    let asked = Asked {
        cluster_id: "c",
        version: 4,
        request,
    };
    let next_offset = Offset(model.image.offset() + 1);
    let (records, response) = decide(
        &model.image,
        &model.config,
        &mut model.sessions,
        (model.now, next_offset),
        &asked,
    );
    (records, response.error_code, response.broker_epoch)
}

#[test]
fn every_check_in_its_order() {
    let mut model = Model::with_brokers(2).with_eligible();
    model.now += Duration::from_secs(1);
    let eligible = |min, max| Feature {
        name: "eligible.leader.replicas.version".into(),
        min_supported_version: min,
        max_supported_version: max,
        ..Default::default()
    };
    type Set = fn(&mut BrokerRegistrationRequest);
    let all_wrong: Set = |r| {
        r.is_migrating_zk_broker = true;
        r.log_dirs.clear();
        r.features.clear();
    };
    let table: &[(ErrorCode, i32, Set)] = &[
        (ErrorCode::INCONSISTENT_CLUSTER_ID, 2, |r| {
            r.cluster_id = "other".into()
        }),
        (ErrorCode::DUPLICATE_BROKER_REGISTRATION, 2, all_wrong),
        (ErrorCode::BROKER_ID_NOT_REGISTERED, 3, all_wrong),
        (ErrorCode::INVALID_REGISTRATION, 3, |r| {
            r.log_dirs.clear();
            r.features.clear();
        }),
        (ErrorCode::INVALID_REGISTRATION, 3, |r| {
            r.log_dirs.push(Uuid::from_halves(0, 99))
        }),
        (ErrorCode::INVALID_REGISTRATION, 3, |r| {
            r.log_dirs.push(directory(3))
        }),
        (ErrorCode::INVALID_REGISTRATION, 3, |r| {
            r.log_dirs.push(directory(2))
        }),
        (ErrorCode::UNSUPPORTED_VERSION, 3, |r| {
            r.features[0].max_supported_version = 32
        }),
        (ErrorCode::UNSUPPORTED_VERSION, 3, |r| {
            r.features[1].min_supported_version = 2
        }),
        (ErrorCode::INVALID_REGISTRATION, 3, |r| {
            r.features.remove(0);
        }),
        (ErrorCode::UNSUPPORTED_VERSION, 3, |r| {
            r.features.remove(1);
        }),
        (ErrorCode::NONE, 3, |_| {}),
    ];
    for (at, (error, id, set)) in table.iter().enumerate() {
        let mut request = request(*id);
        request.features.push(eligible(0, 2));
        set(&mut request);
        let (records, code, epoch) = ask(&mut model, &request);
        assert_eq!(ErrorCode(code), *error, "case {at}");
        assert_eq!(records.is_empty(), error.is_error(), "case {at}");
        if error.is_error() {
            assert_eq!(epoch, -1, "case {at}");
        }
    }
}

#[test]
fn a_new_incarnation_is_fenced_and_has_the_records_offset_as_its_epoch() {
    let mut model = Model::with_brokers(1);
    let (records, code, epoch) = ask(&mut model, &request(2));
    assert_eq!((code, epoch), (0, model.image.offset() + 1));
    model.apply(&records);
    let broker = model.image.broker(NodeId(2)).unwrap().clone();
    assert!(broker.fenced && !broker.in_controlled_shutdown);
    assert_eq!(
        (broker.epoch.0, broker.registered_at),
        (epoch, model.image.offset())
    );
    assert_eq!(broker.endpoint("PLAINTEXT"), Some(("h", 9092)));
    assert_eq!(broker.rack.as_deref(), Some("r"));
    assert_eq!(broker.features[0].max, 33);
}

#[test]
fn the_same_incarnation_amends_its_registration_and_keeps_its_epoch() {
    let mut model = Model::with_brokers(2);
    let mut same = request(2);
    same.incarnation_id = model.image.broker(NodeId(2)).unwrap().incarnation;
    same.log_dirs = vec![directory(2), directory(9)];
    let before = model.epoch(2);
    let (records, code, epoch) = ask(&mut model, &same);
    assert_eq!((code, epoch, records.len()), (0, before, 1));
    model.apply(&records);
    let broker = model.image.broker(NodeId(2)).unwrap();
    assert!(!broker.fenced, "it takes part as before");
    assert_eq!(broker.log_dirs.len(), 2);
    assert_eq!(
        broker.registered_at,
        model.image.offset(),
        "it must apply the new one"
    );
}

#[test]
fn an_id_is_free_again_when_the_session_has_run_out_or_was_never_alive() {
    let mut model = Model::with_brokers(2);
    assert_eq!(ask(&mut model, &request(2)).1, 101);
    model.now += TIMEOUT;
    assert_eq!(ask(&mut model, &request(2)).1, 101);
    model.now += Duration::from_millis(1);
    assert_eq!(ask(&mut model, &request(2)).1, 0);
    // The broker of the controller's own process: its earlier life cannot go on elsewhere.
    let mut model = Model::with_brokers(2);
    assert_eq!(ask(&mut model, &request(1)).1, 0);
    let (image, now) = (model.image.clone(), model.now);
    model
        .sessions
        .heard(image.broker(NodeId(1)).unwrap(), 0, now);
    assert_eq!(ask(&mut model, &request(1)).1, 101);
}

#[test]
fn only_the_epoch_of_the_last_life_proves_that_it_stopped_cleanly() {
    for (previous, version, eligible) in
        [(0, 4, true), (0, 2, false), (-1, 4, false), (7, 4, false)]
    {
        let mut model = Model::with_brokers(2).with_eligible();
        model.set(false, "min.insync.replicas", "2");
        model.partition(&[2, 1], &[2, 1], 2);
        model.now += TIMEOUT + Duration::from_millis(1);
        let mut new = request(2);
        new.features.push(Feature {
            name: "eligible.leader.replicas.version".into(),
            max_supported_version: 1,
            ..Default::default()
        });
        new.previous_broker_epoch = if previous == 0 {
            model.epoch(2)
        } else {
            previous
        };
        let asked = Asked {
            cluster_id: "c",
            version,
            request: &new,
        };
        let next = Offset(model.image.offset() + 1);
        let (records, response) = decide(
            &model.image,
            &model.config,
            &mut model.sessions,
            (model.now, next),
            &asked,
        );
        assert_eq!(response.error_code, 0);
        assert!(matches!(
            records.last(),
            Some(MetadataRecord::RegisterBroker(_))
        ));
        model.apply(&records);
        let expected = if eligible { vec![2] } else { vec![] };
        assert_eq!(
            model.told(0),
            (1, vec![1], expected),
            "{previous} in version {version}"
        );
    }
}
