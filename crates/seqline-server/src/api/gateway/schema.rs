//! The JSON Schema of all frames, made from the types that are sent.

use axum::Json;
use serde_json::{Value, json};
use utoipa::OpenApi;

use super::frame::{ClientFrame, ServerFrame};
use crate::api::envelope::EventSchema;

#[derive(OpenApi)]
#[openapi(components(schemas(ClientFrame, ServerFrame<'_>, EventSchema)))]
struct Frames;

/// What a client may send and what it is sent.
pub(in crate::api) async fn schema() -> Json<Value> {
    Json(document())
}

fn document() -> Value {
    let described = serde_json::to_string(&Frames::openapi().components).unwrap_or_default();
    let described = described.replace("#/components/schemas/", "#/$defs/");
    let mut described: Value = serde_json::from_str(&described).unwrap_or_default();
    // Events are texts that are rendered already, so no type has this frame.
    described["schemas"]["EventFrame"] = json!({
        "type": "object",
        "description": "An event, to agents with `redelivered` if it was not acknowledged in time.",
        "required": ["op", "d"],
        "properties": { "op": { "const": "event" }, "d": { "$ref": "#/$defs/Event" } },
    });
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Frames of the gateway",
        "oneOf": [{ "$ref": "#/$defs/ClientFrame" }, { "$ref": "#/$defs/ServerFrame" }, { "$ref": "#/$defs/EventFrame" }],
        "$defs": described["schemas"],
    })
}
