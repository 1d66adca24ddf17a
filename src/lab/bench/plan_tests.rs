//! Which wishes contradict each other, and what the result says of them.

use super::*;

fn refusal(change: impl FnOnce(&mut Plan)) -> String {
    let mut plan = Plan::default();
    change(&mut plan);
    plan.validate().unwrap_err().to_string()
}

#[test]
fn the_defaults_are_possible() {
    assert!(Plan::default().validate().is_ok());
    let both = Plan {
        consumers: 2,
        ..Plan::default()
    };
    assert!(both.validate().is_ok());
}

#[test]
fn contradictions_are_told() {
    let said = refusal(|plan| plan.producers = 0);
    assert!(said.contains("nothing to do"), "{said}");
    let said = refusal(|plan| (plan.idempotence, plan.acks) = (true, Acks::Leader));
    assert!(said.contains("acks=all"), "{said}");
    let said = refusal(|plan| (plan.idempotence, plan.in_flight) = (true, 6));
    assert!(said.contains("from 1 to 5 with idempotence"), "{said}");
    let said = refusal(|plan| plan.cpus = vec![0, 1]);
    assert!(said.contains("2 CPUs for 1 threads"), "{said}");
    let said = refusal(|plan| plan.threads = 0);
    assert!(said.contains("0 threads"), "{said}");
    let said = refusal(|plan| (plan.consumers, plan.sizes) = (1, Sizes::Fixed(15)));
    assert!(said.contains("at least 16"), "{said}");
    let said = refusal(|plan| plan.buffer_bytes = 1000);
    assert!(said.contains("more than the buffer"), "{said}");
    let said = refusal(|plan| plan.duration = Duration::ZERO);
    assert!(said.contains("nothing would be measured"), "{said}");
    let said = refusal(|plan| {
        plan.make_topic = Some(TopicToMake {
            partitions: 0,
            replication_factor: 1,
            configs: Vec::new(),
        });
    });
    assert!(said.contains("0 partitions"), "{said}");
    for rate in [0.0, -1.0, f64::NAN, f64::INFINITY, 1e10] {
        let said = refusal(|plan| {
            plan.load = Load::Open {
                records_per_second: rate,
                arrivals: Arrivals::Fixed,
            };
        });
        assert!(said.contains("rate"), "{said}");
    }
}

#[test]
fn transactions_imply_what_they_need() {
    let transactions = TransactionPlan {
        id_prefix: "bench".to_owned(),
        records: Some(100),
        duration: None,
        abort_percent: 0.0,
        timeout: Duration::from_secs(60),
    };
    let plan = Plan {
        idempotence: true,
        transactions: Some(transactions),
        ..Plan::default()
    };
    assert!(plan.validate().is_ok());
    assert_eq!(plan.options()["transactional-id"], "bench");
    let refusal = |change: &dyn Fn(&mut Plan)| {
        let mut plan = plan.clone();
        change(&mut plan);
        plan.validate().unwrap_err().to_string()
    };
    let said = refusal(&|plan| plan.acks = Acks::Leader);
    assert!(said.contains("transactions need acks=all"), "{said}");
    let said = refusal(&|plan| plan.idempotence = false);
    assert!(said.contains("need idempotence"), "{said}");
    let said = refusal(&|plan| (plan.producers, plan.consumers) = (0, 1));
    assert!(said.contains("there are none"), "{said}");
    let said = refusal(&|plan| plan.consumers = 1);
    assert!(said.contains("read_committed"), "{said}");
}

#[test]
fn a_consumer_does_not_care_for_the_producers_options() {
    let plan = Plan {
        producers: 0,
        consumers: 1,
        in_flight: 0,
        ..Plan::default()
    };
    assert!(plan.validate().is_ok());
    assert!(!plan.options().contains_key("acks"));
    assert!(plan.options().contains_key("fetch-sessions"));
}
