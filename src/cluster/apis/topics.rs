//! Topics: CreateTopics (key 19, v2-7), DeleteTopics (20, v1-6), CreatePartitions (37, v0-3).

use crate::cluster::controller::{Controller, dice};
use crate::cluster::topic_admin;
use crate::wire::messages::create_partitions_request::CreatePartitionsRequest;
use crate::wire::messages::create_partitions_response::{
    CreatePartitionsResponse, CreatePartitionsTopicResult,
};
use crate::wire::messages::create_topics_request::CreateTopicsRequest;
use crate::wire::messages::create_topics_response::{CreatableTopicResult, CreateTopicsResponse};
use crate::wire::messages::delete_topics_request::DeleteTopicsRequest;
use crate::wire::messages::delete_topics_response::{DeletableTopicResult, DeleteTopicsResponse};
use crate::wire::{ErrorCode, Str};
use std::rc::Rc;

pub(super) async fn create(
    controller: &Rc<Controller>,
    request: CreateTopicsRequest,
) -> CreateTopicsResponse {
    let decided = controller.change(|image| {
        dice(|dice| topic_admin::create_topics(image, &controller.config, &request, dice))
    });
    decided
        .await
        .unwrap_or_else(|error| not_created(&request, super::unavailable(&error)))
}

/// The answer when no controller could decide.
pub fn not_created(request: &CreateTopicsRequest, error: ErrorCode) -> CreateTopicsResponse {
    let refused = |name: &Str| CreatableTopicResult {
        name: name.clone(),
        error_code: error.0,
        error_message: Some(Str::from_static(error.message())),
        ..Default::default()
    };
    let topics = request.topics.iter();
    CreateTopicsResponse {
        topics: topics.map(|topic| refused(&topic.name)).collect(),
        ..Default::default()
    }
}

pub(super) async fn delete(
    controller: &Rc<Controller>,
    version: i16,
    request: DeleteTopicsRequest,
) -> DeleteTopicsResponse {
    let decided = controller
        .change(|image| topic_admin::delete_topics(image, &controller.config, &request, version));
    decided
        .await
        .unwrap_or_else(|error| not_deleted(&request, super::unavailable(&error)))
}

/// The answer when no controller could decide.
pub fn not_deleted(request: &DeleteTopicsRequest, error: ErrorCode) -> DeleteTopicsResponse {
    let by_name = request.topic_names.iter();
    let by_name = by_name.map(|name| (Some(name.clone()), Default::default()));
    let by_id = request.topics.iter();
    let by_id = by_id.map(|topic| (topic.name.clone(), topic.topic_id));
    DeleteTopicsResponse {
        responses: by_name
            .chain(by_id)
            .map(|(name, topic_id)| DeletableTopicResult {
                name,
                topic_id,
                error_code: error.0,
                ..Default::default()
            })
            .collect(),
        ..Default::default()
    }
}

pub(super) async fn create_partitions(
    controller: &Rc<Controller>,
    request: CreatePartitionsRequest,
) -> CreatePartitionsResponse {
    let decided = controller
        .change(|image| dice(|dice| topic_admin::create_partitions(image, &request, dice)));
    decided
        .await
        .unwrap_or_else(|error| not_grown(&request, super::unavailable(&error)))
}

/// The answer when no controller could decide.
pub fn not_grown(request: &CreatePartitionsRequest, error: ErrorCode) -> CreatePartitionsResponse {
    let refused = |name: &Str| CreatePartitionsTopicResult {
        name: name.clone(),
        error_code: error.0,
        ..Default::default()
    };
    let topics = request.topics.iter();
    CreatePartitionsResponse {
        results: topics.map(|topic| refused(&topic.name)).collect(),
        ..Default::default()
    }
}
