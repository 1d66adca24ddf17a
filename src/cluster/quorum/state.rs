//! Kafka's `quorum-state`: the term this node is in and whom it voted for. Written atomically and
//! synced. Runs on the control executor.

use crate::cluster::metadata_log::MetadataLogError;
use crate::rt;
use crate::types::{LeaderEpoch, NodeId};
use std::io;
use std::path::{Path, PathBuf};

const QUORUM_STATE: &str = "quorum-state";

/// See the module's words.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ElectionState {
    pub epoch: LeaderEpoch,
    /// Whom this node voted for in the epoch. A leader it knew of counts: it votes for no other.
    pub voted: Option<NodeId>,
}

/// Reads the state under `home`; epoch 0 where there is none.
///
/// # Errors
/// Also if the file is not one: who does not know its vote might give it twice.
pub async fn read(home: &Path) -> Result<ElectionState, MetadataLogError> {
    let path = home.join(QUORUM_STATE);
    let text = match rt::fs::read(&path).await {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Ok(ElectionState::default());
        }
        Err(source) => return Err(io_error("cannot read", path, source)),
    };
    parse(&text).ok_or_else(|| MetadataLogError::State {
        path,
        what: "is not the state of an election".into(),
    })
}

fn parse(text: &[u8]) -> Option<ElectionState> {
    let state: serde_json::Value = serde_json::from_slice(text).ok()?;
    let field = |name| i32::try_from(state.get(name)?.as_i64()?).ok();
    let epoch = field("leaderEpoch").filter(|epoch| *epoch >= 0)?;
    let node = |name| field(name).filter(|id| *id >= 0).map(NodeId);
    Some(ElectionState {
        epoch: LeaderEpoch(epoch),
        voted: node("votedId").or(node("leaderId")),
    })
}

/// Writes the state under `home`. `leader` is the leader of the epoch, if it is known.
pub async fn write(
    home: &Path,
    state: ElectionState,
    leader: Option<NodeId>,
    voters: &[NodeId],
) -> Result<(), MetadataLogError> {
    let id = |node: Option<NodeId>| node.map_or(-1, |node| node.0);
    let voters: Vec<_> = voters
        .iter()
        .map(|voter| serde_json::json!({ "voterId": voter.0 }))
        .collect();
    let text = serde_json::json!({
        "clusterId": "",
        "leaderId": id(leader),
        "leaderEpoch": state.epoch.0,
        "votedId": id(state.voted),
        "appliedOffset": 0,
        "currentVoters": voters,
        "data_version": 0,
    });
    let path = home.join(QUORUM_STATE);
    let written = rt::fs::write_atomic(&path, text.to_string().into_bytes()).await;
    written.map_err(|source| io_error("cannot write", path, source))
}

fn io_error(what: &'static str, path: PathBuf, source: io::Error) -> MetadataLogError {
    MetadataLogError::Io { what, path, source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kafkas_forms_are_read_and_nothing_is_guessed() {
        let read = |text: &str| parse(text.as_bytes());
        let state = |epoch, voted: Option<i32>| {
            Some(ElectionState {
                epoch: LeaderEpoch(epoch),
                voted: voted.map(NodeId),
            })
        };
        let old = r#"{"clusterId":"","leaderId":1,"leaderEpoch":2,"votedId":-1,"appliedOffset":0,"currentVoters":[{"voterId":1}],"data_version":0}"#;
        assert_eq!(read(old), state(2, Some(1)));
        let new = r#"{"leaderId":-1,"leaderEpoch":7,"votedId":3,"votedDirectoryId":"AAAAAAAAAAAAAAAAAAAAAA","data_version":1}"#;
        assert_eq!(read(new), state(7, Some(3)));
        assert_eq!(read(r#"{"leaderId":-1,"leaderEpoch":7}"#), state(7, None));
        for bad in [
            "",
            "{}",
            r#"{"leaderEpoch":-2}"#,
            r#"{"leaderEpoch":99999999999}"#,
        ] {
            assert_eq!(read(bad), None, "{bad}");
        }
    }
}
