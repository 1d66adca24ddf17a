//! How `highwater dump-log` puts records into words: as text, or as the records of one of the
//! cluster's own logs, in the JSON that Kafka's tool prints. A record that cannot be read is told
//! in its place and stops nothing.

use bytes::Bytes;
use serde_json::{Value, json};

use crate::log::dump::{Decoded, Decoder, TextDecoder};
use crate::wire::coordinator_record::{TRANSACTION_STATES, decode_versioned_capped};
use crate::wire::messages::consumer_protocol_assignment::ConsumerProtocolAssignment;
use crate::wire::messages::consumer_protocol_subscription::ConsumerProtocolSubscription;
use crate::wire::messages::group_metadata_value::GroupMetadataValue;
use crate::wire::messages::k_raft_version_record::KRaftVersionRecord;
use crate::wire::messages::leader_change_message::LeaderChangeMessage;
use crate::wire::messages::snapshot_footer_record::SnapshotFooterRecord;
use crate::wire::messages::snapshot_header_record::SnapshotHeaderRecord;
use crate::wire::messages::voters_record::VotersRecord;
use crate::wire::messages::{AnyRecord, GroupRecord, TransactionRecord};
use crate::wire::metadata_record::decode_record;
use crate::wire::record::RecordView;
use crate::wire::{DecodeError, Message, Reader};

/// What the records of a log are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum LogDecoder {
    /// Keys and values as text.
    Text,
    /// `__consumer_offsets`.
    Offsets,
    /// `__transaction_state`.
    Transactions,
    /// `__cluster_metadata`.
    Metadata,
}

impl Decoder for LogDecoder {
    fn record(&self, record: &RecordView) -> Decoded {
        let pair = |result: Result<Pair, DecodeError>| match result {
            Ok(pair) => Decoded {
                key: Some(pair.key.to_string()),
                payload: Some(pair.payload()),
            },
            Err(error) => Decoded {
                key: Some(skipped(record, &error)),
                payload: None,
            },
        };
        let key = record.key.clone().unwrap_or_default();
        match self {
            LogDecoder::Text => TextDecoder.record(record),
            LogDecoder::Offsets => pair(group_pair(key, record.value.clone())),
            LogDecoder::Transactions => pair(transaction_pair(key, record.value.clone())),
            LogDecoder::Metadata => {
                let value = record.value.clone().unwrap_or_default();
                let payload = match decode_record(value) {
                    Ok((record, version)) => metadata_words(&record, version).to_string(),
                    Err(error) => skipped(record, &error),
                };
                Decoded {
                    key: None,
                    payload: Some(payload),
                }
            }
        }
    }

    fn control(&self, type_id: i16, value: &Bytes) -> Option<String> {
        match type_id {
            2 => control_words::<LeaderChangeMessage>("LeaderChange:", value),
            3 => control_words::<SnapshotHeaderRecord>("SnapshotHeader", value),
            4 => control_words::<SnapshotFooterRecord>("SnapshotFooter", value),
            5 => control_words::<KRaftVersionRecord>("KRaftVersion", value),
            6 => control_words::<VotersRecord>("KRaftVoters", value),
            _ => None,
        }
    }
}

fn skipped(record: &RecordView, error: &DecodeError) -> String {
    format!("Error at offset {}, skipping. {error}", record.offset)
}

/// A control record; its first field is its version.
fn control_words<M: Message>(name: &str, value: &Bytes) -> Option<String> {
    let version = i16::from_be_bytes([*value.first()?, *value.get(1)?]).min(M::MAX_VERSION);
    let message = M::decode(&mut Reader::new(value.clone()), version).ok()?;
    Some(format!("{name} {}", message.to_json(version)))
}

/// Key and value of a coordinator's record.
struct Pair {
    key: Value,
    /// `None` is a tombstone.
    value: Option<Value>,
}

impl Pair {
    fn new<K: Message, V: Message>(key: &K, value: Option<&V>, version: i16) -> Pair {
        Pair {
            key: json!({"type": K::API_KEY.to_string(), "data": key.to_json(K::MIN_VERSION)}),
            value: value.map(
                |value| json!({"version": version.to_string(), "data": value.to_json(version)}),
            ),
        }
    }

    fn payload(&self) -> String {
        self.value
            .as_ref()
            .map_or_else(|| "<DELETE>".to_owned(), Value::to_string)
    }
}

/// The version in front of a coordinator's value; unused for a tombstone.
fn version_of(value: Option<&Bytes>) -> i16 {
    match value.map(|value| &value[..]) {
        Some([high, low, ..]) => i16::from_be_bytes([*high, *low]),
        _ => 0,
    }
}

/// Every kind of record has types of its own for key and value, all written the same way.
macro_rules! pair_of {
    ($record:expr, $version:expr, $kind:ident: $($variant:ident)+) => {
        match $record {
            $($kind::$variant(key, value) => Pair::new(&key, value.as_ref(), $version),)+
        }
    };
}

fn transaction_pair(key: Bytes, value: Option<Bytes>) -> Result<Pair, DecodeError> {
    let version = version_of(value.as_ref());
    let TransactionRecord::TransactionLog(key, value) = TransactionRecord::decode(key, value)?;
    let mut pair = Pair::new(&key, value.as_ref(), version);
    if let (Some(value), Some(data)) = (&value, pair.value.as_mut()) {
        let status = usize::try_from(value.transaction_status).ok();
        if let Some(name) = status.and_then(|status| TRANSACTION_STATES.get(status)) {
            data["data"]["transactionStatus"] = json!(name);
        }
    }
    Ok(pair)
}

fn group_pair(key: Bytes, value: Option<Bytes>) -> Result<Pair, DecodeError> {
    let version = version_of(value.as_ref());
    let record = GroupRecord::decode(key, value)?;
    if let GroupRecord::GroupMetadata(key, Some(value)) = &record {
        let mut pair = Pair::new(key, Some(value), version);
        if let Some(data) = pair.value.as_mut() {
            spell_out_members(value, &mut data["data"]);
        }
        return Ok(pair);
    }
    Ok(pair_of!(record, version, GroupRecord:
        LegacyOffsetCommit OffsetCommit GroupMetadata ConsumerGroupMetadata
        ConsumerGroupPartitionMetadata ConsumerGroupMemberMetadata
        ConsumerGroupTargetAssignmentMetadata ConsumerGroupTargetAssignmentMember
        ConsumerGroupCurrentMemberAssignment ShareGroupMemberMetadata ShareGroupMetadata
        ShareGroupTargetAssignmentMetadata ShareGroupTargetAssignmentMember
        ShareGroupCurrentMemberAssignment ShareGroupStatePartitionMetadata
        ConsumerGroupRegularExpression StreamsGroupMetadata StreamsGroupMemberMetadata
        StreamsGroupTargetAssignmentMetadata StreamsGroupTargetAssignmentMember
        StreamsGroupCurrentMemberAssignment StreamsGroupTopology
    ))
}

/// Subscriptions and assignments of consumers in words instead of bytes.
fn spell_out_members(group: &GroupMetadataValue, data: &mut Value) {
    if group.protocol_type.as_str() != "consumer" {
        return;
    }
    for (index, member) in group.members.iter().enumerate() {
        let member_data = &mut data["members"][index];
        if let Some(words) = versioned::<ConsumerProtocolSubscription>(&member.subscription) {
            member_data["subscription"] = words;
        }
        if let Some(words) = versioned::<ConsumerProtocolAssignment>(&member.assignment) {
            member_data["assignment"] = words;
        }
    }
}

/// What a client wrote may be anything: then it stays as it is.
fn versioned<M: Message>(bytes: &Bytes) -> Option<Value> {
    let (message, version) = decode_versioned_capped::<M>(bytes.clone()).ok()?;
    Some(message.to_json(version))
}

macro_rules! record_name {
    ($record:expr, $($variant:ident = $name:literal)+) => {
        match $record { $(AnyRecord::$variant(_) => $name,)+ }
    };
}

fn metadata_words(record: &AnyRecord, version: i16) -> Value {
    let name = record_name!(record,
        RegisterBrokerRecord = "REGISTER_BROKER_RECORD"
        UnregisterBrokerRecord = "UNREGISTER_BROKER_RECORD"
        TopicRecord = "TOPIC_RECORD"
        PartitionRecord = "PARTITION_RECORD"
        ConfigRecord = "CONFIG_RECORD"
        PartitionChangeRecord = "PARTITION_CHANGE_RECORD"
        FenceBrokerRecord = "FENCE_BROKER_RECORD"
        UnfenceBrokerRecord = "UNFENCE_BROKER_RECORD"
        RemoveTopicRecord = "REMOVE_TOPIC_RECORD"
        DelegationTokenRecord = "DELEGATION_TOKEN_RECORD"
        UserScramCredentialRecord = "USER_SCRAM_CREDENTIAL_RECORD"
        FeatureLevelRecord = "FEATURE_LEVEL_RECORD"
        ClientQuotaRecord = "CLIENT_QUOTA_RECORD"
        ProducerIdsRecord = "PRODUCER_IDS_RECORD"
        BrokerRegistrationChangeRecord = "BROKER_REGISTRATION_CHANGE_RECORD"
        AccessControlEntryRecord = "ACCESS_CONTROL_ENTRY_RECORD"
        RemoveAccessControlEntryRecord = "REMOVE_ACCESS_CONTROL_ENTRY_RECORD"
        NoOpRecord = "NO_OP_RECORD"
        ZkMigrationStateRecord = "ZK_MIGRATION_STATE_RECORD"
        RemoveUserScramCredentialRecord = "REMOVE_USER_SCRAM_CREDENTIAL_RECORD"
        BeginTransactionRecord = "BEGIN_TRANSACTION_RECORD"
        EndTransactionRecord = "END_TRANSACTION_RECORD"
        AbortTransactionRecord = "ABORT_TRANSACTION_RECORD"
        RemoveDelegationTokenRecord = "REMOVE_DELEGATION_TOKEN_RECORD"
        RegisterControllerRecord = "REGISTER_CONTROLLER_RECORD"
        ClearElrRecord = "CLEAR_ELR_RECORD"
        UnregisterControllerRecord = "UNREGISTER_CONTROLLER_RECORD"
    );
    json!({"type": name, "version": version, "data": record.to_json(version)})
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::Uuid;
    use crate::wire::messages::group_metadata_key::GroupMetadataKey;
    use crate::wire::messages::offset_commit_key::OffsetCommitKey;
    use crate::wire::messages::offset_commit_value::OffsetCommitValue;
    use crate::wire::messages::transaction_log_key::TransactionLogKey;
    use crate::wire::messages::transaction_log_value::TransactionLogValue;

    fn words(record: &GroupRecord, version: i16) -> (String, String) {
        let (key, value) = record.encode(version).unwrap();
        let pair = group_pair(key, value).unwrap();
        (pair.key.to_string(), pair.payload())
    }

    #[test]
    fn an_offset_commit_is_printed_as_kafka_prints_it() {
        let key = OffsetCommitKey {
            group: "g2".into(),
            topic: "t2".into(),
            partition: 2,
            ..OffsetCommitKey::default()
        };
        let value = OffsetCommitValue {
            offset: 20,
            leader_epoch: 0,
            commit_timestamp: 1_795_965_182_263,
            topic_id: Uuid::parse("TkoaaUr1QzKTMaN3d2oGWQ").unwrap(),
            ..OffsetCommitValue::default()
        };
        let (key_words, payload) = words(&GroupRecord::OffsetCommit(key.clone(), Some(value)), 4);
        assert_eq!(
            key_words,
            r#"{"type":"1","data":{"group":"g2","topic":"t2","partition":2}}"#
        );
        assert_eq!(
            payload,
            r#"{"version":"4","data":{"offset":20,"leaderEpoch":0,"metadata":"","commitTimestamp":1795965182263,"topicId":"TkoaaUr1QzKTMaN3d2oGWQ"}}"#
        );
        assert_eq!(
            words(&GroupRecord::OffsetCommit(key, None), 4).1,
            "<DELETE>"
        );
    }

    #[test]
    fn a_transaction_is_printed_as_kafka_prints_it_with_its_status_by_name() {
        let key = TransactionLogKey {
            transactional_id: "t".into(),
            ..TransactionLogKey::default()
        };
        let value = |status| TransactionLogValue {
            producer_id: 6,
            previous_producer_id: 6,
            transaction_timeout_ms: 600_000,
            transaction_status: status,
            transaction_partitions: None,
            transaction_last_update_timestamp_ms: 1_795_977_576_039,
            transaction_start_timestamp_ms: -1,
            ..TransactionLogValue::default()
        };
        let payload = |status| {
            let record = TransactionRecord::TransactionLog(key.clone(), Some(value(status)));
            let (key, value) = record.encode(1).unwrap();
            transaction_pair(key, value).unwrap().payload()
        };
        assert_eq!(
            payload(0),
            r#"{"version":"1","data":{"producerId":6,"previousProducerId":6,"producerEpoch":0,"transactionTimeoutMs":600000,"transactionStatus":"Empty","transactionPartitions":null,"transactionLastUpdateTimestampMs":1795977576039,"transactionStartTimestampMs":-1}}"#
        );
        assert!(payload(7).contains(r#""transactionStatus":"PrepareEpochFence""#));
        assert!(payload(8).contains(r#""transactionStatus":8"#));
    }

    #[test]
    fn an_empty_group_is_printed_as_kafka_prints_it() {
        let key = GroupMetadataKey {
            group: "g2".into(),
            ..GroupMetadataKey::default()
        };
        let value = GroupMetadataValue {
            protocol: None,
            leader: None,
            current_state_timestamp: 1_795_965_182_144,
            ..GroupMetadataValue::default()
        };
        let (key, payload) = words(&GroupRecord::GroupMetadata(key, Some(value)), 3);
        assert_eq!(key, r#"{"type":"2","data":{"group":"g2"}}"#);
        assert_eq!(
            payload,
            r#"{"version":"3","data":{"protocolType":"","generation":0,"protocol":null,"leader":null,"currentStateTimestamp":1795965182144,"members":[]}}"#
        );
    }
}
