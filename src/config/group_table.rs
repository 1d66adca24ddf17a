//! The settings of groups and of client-metrics subscriptions. They are kept, checked and shown;
//! what of them acts depends on the group's protocol. Facts only.

use super::definition::Kind;

/// One setting of groups or of client-metrics subscriptions.
#[derive(Clone, Copy, Debug)]
pub struct GroupDefinition {
    pub name: &'static str,
    pub kind: Kind,
    /// The broker setting that holds where the group says nothing; "" if there is none.
    pub broker_synonym: &'static str,
    /// The broker settings between which the value must be; "" where there is no bound.
    pub least: &'static str,
    pub most: &'static str,
    pub default: &'static str,
    pub doc: &'static str,
}

const fn define(
    name: &'static str,
    kind: Kind,
    broker_synonym: &'static str,
    bounds: (&'static str, &'static str),
    default: &'static str,
    doc: &'static str,
) -> GroupDefinition {
    GroupDefinition {
        name,
        kind,
        broker_synonym,
        least: bounds.0,
        most: bounds.1,
        default,
        doc,
    }
}

const FREE: (&str, &str) = ("", "");
const TIME: Kind = Kind::Int(1, i32::MAX);

/// By name.
#[rustfmt::skip]
const GROUP_SETTINGS: &[GroupDefinition] = &[
    define("consumer.assignment.interval.ms", Kind::Int(0, i32::MAX), "group.consumer.assignment.interval.ms", ("group.consumer.min.assignment.interval.ms", "group.consumer.max.assignment.interval.ms"), "1000", "Shortest time between two assignments of a consumer group."),
    define("consumer.heartbeat.interval.ms", TIME, "group.consumer.heartbeat.interval.ms", ("group.consumer.min.heartbeat.interval.ms", "group.consumer.max.heartbeat.interval.ms"), "5000", "How often members of a consumer group report."),
    define("consumer.session.timeout.ms", TIME, "group.consumer.session.timeout.ms", ("group.consumer.min.session.timeout.ms", "group.consumer.max.session.timeout.ms"), "45000", "A member of a consumer group not heard of for this long is removed."),
    define("errors.deadletterqueue.copy.record.enable", Kind::Boolean, "", FREE, "false", "Whether a share group's dead letters carry the record itself."),
    define("errors.deadletterqueue.topic.name", Kind::Str, "", FREE, "", "Topic of a share group's dead letters."),
    define("share.assignment.interval.ms", Kind::Int(0, i32::MAX), "group.share.assignment.interval.ms", ("group.share.min.assignment.interval.ms", "group.share.max.assignment.interval.ms"), "1000", "Shortest time between two assignments of a share group."),
    define("share.auto.offset.reset", Kind::Str, "", FREE, "latest", "Where a share group begins: latest, earliest or by_duration:<ISO 8601>."),
    define("share.delivery.count.limit", Kind::Int(2, i32::MAX), "group.share.delivery.count.limit", ("group.share.min.delivery.count.limit", "group.share.max.delivery.count.limit"), "5", "How often a share group delivers a record."),
    define("share.heartbeat.interval.ms", TIME, "group.share.heartbeat.interval.ms", ("group.share.min.heartbeat.interval.ms", "group.share.max.heartbeat.interval.ms"), "5000", "How often members of a share group report."),
    define("share.isolation.level", Kind::OneOf(&["read_committed", "read_uncommitted"]), "", FREE, "read_uncommitted", "Whether a share group sees records of open transactions."),
    define("share.partition.max.record.locks", Kind::Int(100, i32::MAX), "group.share.partition.max.record.locks", ("group.share.min.partition.max.record.locks", "group.share.max.partition.max.record.locks"), "2000", "Records of a partition that a share group may hold at once."),
    define("share.record.lock.duration.ms", Kind::Int(1000, i32::MAX), "group.share.record.lock.duration.ms", ("group.share.min.record.lock.duration.ms", "group.share.max.record.lock.duration.ms"), "30000", "How long a member of a share group may hold a record."),
    define("share.renew.acknowledge.enable", Kind::Boolean, "", FREE, "true", "Whether members of a share group may hold a record longer."),
    define("share.session.timeout.ms", TIME, "group.share.session.timeout.ms", ("group.share.min.session.timeout.ms", "group.share.max.session.timeout.ms"), "45000", "A member of a share group not heard of for this long is removed."),
    define("streams.assignment.interval.ms", Kind::Int(0, i32::MAX), "group.streams.assignment.interval.ms", ("group.streams.min.assignment.interval.ms", "group.streams.max.assignment.interval.ms"), "1000", "Shortest time between two assignments of a streams group."),
    define("streams.assignor.name", Kind::Str, "group.streams.assignors", FREE, "sticky", "Which assignor a streams group uses."),
    define("streams.heartbeat.interval.ms", TIME, "group.streams.heartbeat.interval.ms", ("group.streams.min.heartbeat.interval.ms", "group.streams.max.heartbeat.interval.ms"), "5000", "How often members of a streams group report."),
    define("streams.initial.rebalance.delay.ms", Kind::Int(0, i32::MAX), "group.streams.initial.rebalance.delay.ms", FREE, "3000", "How long the first assignment of an empty streams group waits."),
    define("streams.num.standby.replicas", Kind::Int(0, i32::MAX), "group.streams.num.standby.replicas", ("", "group.streams.max.standby.replicas"), "0", "Standby copies of each task of a streams group."),
    define("streams.rack.aware.assignment.tags", Kind::List, "group.streams.rack.aware.assignment.tags", FREE, "", "Client tags over which standby copies are spread."),
    define("streams.session.timeout.ms", TIME, "group.streams.session.timeout.ms", ("group.streams.min.session.timeout.ms", "group.streams.max.session.timeout.ms"), "45000", "A member of a streams group not heard of for this long is removed."),
];

/// By name.
#[rustfmt::skip]
const CLIENT_METRICS_SETTINGS: &[GroupDefinition] = &[
    define("interval.ms", Kind::Int(i32::MIN, i32::MAX), "", FREE, "300000", "How often clients push their metrics."),
    define("match", Kind::List, "", FREE, "", "Which clients push, as selector=pattern."),
    define("metrics", Kind::List, "", FREE, "", "Prefixes of the metrics that are pushed."),
];

/// All settings of groups, by name.
pub fn group_definitions() -> &'static [GroupDefinition] {
    GROUP_SETTINGS
}

pub fn group_definition(name: &str) -> Option<&'static GroupDefinition> {
    GROUP_SETTINGS
        .iter()
        .find(|definition| definition.name == name)
}

/// All settings of client-metrics subscriptions, by name.
pub fn client_metrics_definitions() -> &'static [GroupDefinition] {
    CLIENT_METRICS_SETTINGS
}

pub fn client_metrics_definition(name: &str) -> Option<&'static GroupDefinition> {
    CLIENT_METRICS_SETTINGS
        .iter()
        .find(|definition| definition.name == name)
}

#[cfg(test)]
mod tests {
    use super::super::{broker_definition, definition::check};
    use super::*;

    #[test]
    fn every_default_is_allowed_and_is_the_broker_settings() {
        for definition in GROUP_SETTINGS.iter().chain(CLIENT_METRICS_SETTINGS) {
            check(definition.name, definition.kind, definition.default).unwrap();
            for broker in [definition.broker_synonym, definition.least, definition.most] {
                assert!(
                    broker.is_empty() || broker_definition(broker).is_some(),
                    "{broker}"
                );
            }
            if let Some(broker) = broker_definition(definition.broker_synonym) {
                assert_eq!(
                    broker.default,
                    Some(definition.default),
                    "{}",
                    definition.name
                );
            }
        }
    }
}
