//! ElectLeaders against a table.

use super::*;
use crate::cluster::test_kit::Model;
use crate::wire::messages::elect_leaders_request::TopicPartitions;

fn ask(model: &Model, kind: i8, some: Option<(&str, &[i32])>) -> (usize, Vec<(i32, i16)>) {
    let request = ElectLeadersRequest {
        election_type: kind,
        topic_partitions: some.map(|(topic, partitions)| {
            vec![TopicPartitions {
                topic: topic.into(),
                partitions: partitions.to_vec(),
                ..Default::default()
            }]
        }),
        ..Default::default()
    };
    let (records, response) = decide(&model.image, &model.config, &request);
    assert_eq!(response.error_code != 0, kind > 1);
    let results = response.replica_election_results.into_iter();
    let told = results
        .flat_map(|topic| topic.partition_result)
        .map(|one| (one.partition_id, one.error_code))
        .collect();
    (records.len(), told)
}

#[test]
fn preferred_and_any_leaders_as_they_are_asked_for() {
    let mut model = Model::with_brokers(3);
    model.partition(&[1, 2], &[1, 2], 1);
    model.partition(&[1, 2], &[1, 2], 2);
    model.partition(&[1, 2], &[2], 2);
    model.partition(&[3, 2], &[3], -1);
    model.partition(&[3], &[3], -1);
    model.broker(3, true);
    let all = [0, 1, 2, 3, 4, 9];
    let (records, told) = ask(&model, 0, Some(("t", &all)));
    assert_eq!(told, [(0, 84), (1, 0), (2, 80), (3, 80), (4, 80), (9, 3)]);
    assert_eq!(records, 1);
    let (records, told) = ask(&model, 1, Some(("t", &all)));
    assert_eq!(told, [(0, 84), (1, 84), (2, 84), (3, 0), (4, 83), (9, 3)]);
    assert_eq!(
        records, 1,
        "an operator's word is enough for an unclean leader"
    );
    // All of them: those that need none are not told.
    assert_eq!(ask(&model, 1, None), (1, vec![(3, 0), (4, 83)]));
    assert_eq!(ask(&model, 0, Some(("x", &[0]))), (0, vec![(0, 3)]));
    assert_eq!(ask(&model, 7, Some(("t", &[0]))), (0, vec![(0, 42)]));
}
