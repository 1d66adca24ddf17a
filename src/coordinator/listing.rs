//! ListGroups (0-5), DescribeGroups (0-6) and DeleteGroups (0-3), for the groups of one shard;
//! the caller asks every shard (or each group's) and joins the lists. Part of the shard state
//! machine on the core of the partition.

use ahash::AHashMap;

use super::appends::Change;
use super::effects::{Call, Effect, Effects, ReplyToken, Response};
use super::group::{Group, GroupState};
use super::records::ForeignKind;
use super::refusal;
use super::shard_state::GroupCoordinatorShard;
use crate::wire::messages::delete_groups_response::DeletableGroupResult;
use crate::wire::messages::describe_groups_response::DescribedGroup;
use crate::wire::messages::list_groups_response::ListedGroup;
use crate::wire::{ErrorCode, Str};

/// The group type of everything that is run here.
const CLASSIC_TYPE: &str = "classic";
/// From this version of DescribeGroups on, GROUP_ID_NOT_FOUND is understood (KIP-1043).
const NOT_FOUND_FROM: i16 = 6;

impl GroupCoordinatorShard {
    /// The stored groups whose state and type are among the filters; an empty filter lets all
    /// pass. Filters do not mind case, and state filters surrounding blanks.
    pub fn list_groups(
        &self,
        states_filter: &[Str],
        types_filter: &[Str],
    ) -> Result<Vec<ListedGroup>, ErrorCode> {
        if let Some(error) = self.refusal() {
            return Err(error);
        }
        let is_type_asked = types_filter.is_empty()
            || types_filter
                .iter()
                .any(|wanted| wanted.eq_ignore_ascii_case(CLASSIC_TYPE));
        if !is_type_asked {
            return Ok(Vec::new());
        }
        let groups = self.groups.values().filter(|group| group.is_durable);
        let removing = self.removing.values().filter_map(|lives| lives.last());
        let groups = groups.chain(removing.filter(|group| {
            let again = self.groups.get(&group.id);
            group.is_durable && again.is_none_or(|again| !again.is_durable)
        }));
        Ok(groups
            .filter(|group| {
                states_filter.is_empty()
                    || states_filter
                        .iter()
                        .any(|wanted| wanted.trim().eq_ignore_ascii_case(group.state().name()))
            })
            .map(|group| ListedGroup {
                group_id: group.id.clone(),
                protocol_type: group.protocol_type.clone().unwrap_or_default(),
                group_state: Str::from_static(group.state().name()),
                group_type: Str::from_static(CLASSIC_TYPE),
                ..Default::default()
            })
            .collect())
    }

    /// One description per id, in the order of the ids. An unknown group is `Dead`.
    pub fn describe_groups(&self, ids: &[Str], version: i16) -> Vec<DescribedGroup> {
        if let Some(error) = self.refusal() {
            return refusal::describe_groups(ids, error);
        }
        ids.iter().map(|id| self.describe(id, version)).collect()
    }

    fn describe(&self, id: &Str, version: i16) -> DescribedGroup {
        let Some(group) = self.readable(id) else {
            let mut described = DescribedGroup {
                group_id: id.clone(),
                group_state: Str::from_static(GroupState::DEAD_NAME),
                ..Default::default()
            };
            if version >= NOT_FOUND_FROM {
                described.error_code = ErrorCode::GROUP_ID_NOT_FOUND.0;
                described.error_message = Some(Str::from(match self.foreign.get(id) {
                    Some(_) => format!("Group {id} is not a classic group."),
                    None => format!("Group {id} not found."),
                }));
            }
            return described;
        };
        let protocol_data = match group.state() {
            GroupState::Stable => group.protocol_name.clone().unwrap_or_default(),
            _ => Str::default(),
        };
        DescribedGroup {
            group_id: id.clone(),
            group_state: Str::from_static(group.state().name()),
            protocol_type: group.protocol_type.clone().unwrap_or_default(),
            protocol_data,
            members: group.described_members(),
            ..Default::default()
        }
    }

    /// A group's generation and state, for tests and the command line.
    pub fn group_summary(&self, id: &str) -> Option<(i32, &'static str, usize)> {
        let summary = |group: &Group| (group.generation, group.state().name(), group.len());
        self.groups.get(id).map(summary)
    }

    /// Deletes groups without members, with their offsets. Answers `token` with one result per id,
    /// in the order of the ids, once the tombstones are stored.
    pub fn delete_groups(&mut self, call: &Call<'_>, ids: &[Str], token: ReplyToken) -> Effects {
        let mut out = Effects::new();
        if let Some(error) = self.refusal() {
            let response = Response::DeleteGroups(refusal::delete_groups(ids, error));
            out.push(Effect::Reply(token, response));
            return out;
        }
        let mut results: Vec<DeletableGroupResult> = Vec::with_capacity(ids.len());
        let mut changes = Vec::new();
        let mut first_of: AHashMap<&Str, usize> = AHashMap::with_capacity(ids.len());
        for (index, id) in ids.iter().enumerate() {
            if let Some(first) = first_of.get(id) {
                results.push(results[*first].clone());
                continue;
            }
            first_of.insert(id, index);
            let error = match (self.foreign.get(id), self.groups.get(id)) {
                // Such groups are run by another protocol, which knows whether they are empty.
                (Some(ForeignKind::Consumer | ForeignKind::Share | ForeignKind::Streams), _) => {
                    ErrorCode::NON_EMPTY_GROUP
                }
                (None, None) => ErrorCode::GROUP_ID_NOT_FOUND,
                (None, Some(group)) if group.is_in(GroupState::Empty) => ErrorCode::NONE,
                (None, Some(_)) => ErrorCode::NON_EMPTY_GROUP,
            };
            if error == ErrorCode::NONE {
                let id = id.detached();
                // Whatever is stored or under way of it, the group last.
                let partitions = self.offsets.all_partitions(&id).into_iter();
                changes.extend(partitions.map(|(topic, partition)| Change::RemoveOffset {
                    group: id.clone(),
                    topic,
                    partition,
                }));
                changes.extend(self.begin_removing(&id, call.clock, &mut out));
            }
            results.push(DeletableGroupResult {
                group_id: id.clone(),
                error_code: error.0,
                ..Default::default()
            });
        }
        let reply = Some((token, Response::DeleteGroups(results)));
        self.write(changes, None, false, reply, call.clock, &mut out);
        out
    }
}
