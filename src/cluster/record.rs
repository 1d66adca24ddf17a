//! The records of `__cluster_metadata` that make an image. An unknown type or version is fatal, for
//! whoever skips a record diverges. Their frame is `wire`'s. Pure, any core.

use crate::wire::messages::*;
use crate::wire::metadata_record::{begin_record, read_frame};
use crate::wire::{DecodeError, EncodeError, Message, Reader, Writer};
use bytes::Bytes;

/// Why bytes are no metadata record.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    #[error("unknown metadata record type {0}: this software is too old for the cluster")]
    Type(i16),
    #[error(
        "metadata record type {kind} has unknown version {version}: this software is too old for the cluster"
    )]
    Version { kind: i16, version: i16 },
    #[error("{0} bytes follow the record")]
    Trailing(usize),
    #[error(transparent)]
    Message(#[from] DecodeError),
}

macro_rules! metadata_records {
    ($($name:ident: $module:ident::$message:ident,)*) => {
        /// One record of the metadata log.
        #[derive(Clone, Debug, PartialEq)]
        pub enum MetadataRecord {
            $($name($module::$message),)*
        }

        impl MetadataRecord {
            /// As Kafka names the record.
            pub fn name(&self) -> &'static str {
                match self {
                    $(MetadataRecord::$name(_) => $module::$message::NAME,)*
                }
            }

            fn body(&self, version: i16, to: &mut Writer) -> Result<(), EncodeError> {
                match self {
                    $(MetadataRecord::$name(message) => message.encode(to, version),)*
                }
            }

            fn kind(&self) -> (i16, i16) {
                match self {
                    $(MetadataRecord::$name(_) => ($module::$message::API_KEY, $module::$message::MAX_VERSION),)*
                }
            }

            fn read(kind: i16, version: i16, from: &mut Reader) -> Result<MetadataRecord, RecordError> {
                $(
                    if kind == $module::$message::API_KEY {
                        let known = $module::$message::MIN_VERSION..=$module::$message::MAX_VERSION;
                        if !known.contains(&version) {
                            return Err(RecordError::Version { kind, version });
                        }
                        return Ok(MetadataRecord::$name($module::$message::decode(from, version)?));
                    }
                )*
                Err(RecordError::Type(kind))
            }
        }

        $(
            impl From<$module::$message> for MetadataRecord {
                fn from(message: $module::$message) -> MetadataRecord {
                    MetadataRecord::$name(message)
                }
            }
        )*
    };
}

metadata_records! {
    RegisterBroker: register_broker_record::RegisterBrokerRecord,
    UnregisterBroker: unregister_broker_record::UnregisterBrokerRecord,
    Topic: topic_record::TopicRecord,
    Partition: partition_record::PartitionRecord,
    Config: config_record::ConfigRecord,
    PartitionChange: partition_change_record::PartitionChangeRecord,
    FenceBroker: fence_broker_record::FenceBrokerRecord,
    UnfenceBroker: unfence_broker_record::UnfenceBrokerRecord,
    RemoveTopic: remove_topic_record::RemoveTopicRecord,
    DelegationToken: delegation_token_record::DelegationTokenRecord,
    UserScramCredential: user_scram_credential_record::UserScramCredentialRecord,
    FeatureLevel: feature_level_record::FeatureLevelRecord,
    ClientQuota: client_quota_record::ClientQuotaRecord,
    ProducerIds: producer_ids_record::ProducerIdsRecord,
    BrokerRegistrationChange: broker_registration_change_record::BrokerRegistrationChangeRecord,
    AccessControlEntry: access_control_entry_record::AccessControlEntryRecord,
    RemoveAccessControlEntry: remove_access_control_entry_record::RemoveAccessControlEntryRecord,
    NoOp: no_op_record::NoOpRecord,
    ZkMigrationState: zk_migration_state_record::ZkMigrationStateRecord,
    RemoveUserScramCredential: remove_user_scram_credential_record::RemoveUserScramCredentialRecord,
    BeginTransaction: begin_transaction_record::BeginTransactionRecord,
    EndTransaction: end_transaction_record::EndTransactionRecord,
    AbortTransaction: abort_transaction_record::AbortTransactionRecord,
    RemoveDelegationToken: remove_delegation_token_record::RemoveDelegationTokenRecord,
    RegisterController: register_controller_record::RegisterControllerRecord,
    ClearElr: clear_elr_record::ClearElrRecord,
    UnregisterController: unregister_controller_record::UnregisterControllerRecord,
}

impl MetadataRecord {
    /// The record in its frame, as the value of a log record. Versions are those of
    /// metadata.version 33, the only level this broker formats.
    pub fn encode(&self) -> Result<Bytes, EncodeError> {
        let (kind, version) = self.kind();
        let mut writer = begin_record(kind, version)?;
        self.body(version, &mut writer)?;
        Ok(writer.into_bytes())
    }

    /// Reads the value of a log record.
    pub fn decode(value: Bytes) -> Result<MetadataRecord, RecordError> {
        let mut reader = Reader::new(value);
        let (kind, version) = read_frame(&mut reader)?;
        let record = MetadataRecord::read(kind, version, &mut reader)?;
        match reader.remaining() {
            0 => Ok(record),
            trailing => Err(RecordError::Trailing(trailing)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::Uuid;

    #[test]
    fn a_record_comes_back_from_its_frame() {
        let topic = MetadataRecord::from(topic_record::TopicRecord {
            name: "t".into(),
            topic_id: Uuid::from_halves(1, 2),
            ..Default::default()
        });
        let bytes = topic.encode().unwrap();
        assert_eq!(&bytes[..3], &[1, 2, 0]);
        assert_eq!(MetadataRecord::decode(bytes).unwrap(), topic);
    }

    #[test]
    fn what_is_not_known_is_fatal_and_never_skipped() {
        let error =
            |bytes: &'static [u8]| MetadataRecord::decode(Bytes::from_static(bytes)).unwrap_err();
        assert!(matches!(error(&[2, 2, 0]), RecordError::Message(_)));
        assert!(matches!(error(&[1, 13, 0]), RecordError::Type(13)));
        assert!(matches!(
            error(&[1, 2, 9]),
            RecordError::Version {
                kind: 2,
                version: 9
            }
        ));
        assert!(matches!(error(&[1, 20, 0, 0, 7]), RecordError::Trailing(1)));
        assert!(matches!(error(&[1, 2, 0, 5]), RecordError::Message(_)));
        assert!(matches!(error(&[]), RecordError::Message(_)));
    }
}
