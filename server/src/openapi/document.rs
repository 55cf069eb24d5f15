//! Puts the document together.

use axum::body::Bytes;
use perilune_protocol::ErrorBody;
use schemars::generate::SchemaSettings;
use schemars::{Schema, SchemaGenerator};
use serde_json::{Map, Value, json};

use super::{Answer, JSON, Operation, StreamEnd, meaning, page};
use crate::access::{Access, access};

/// Where the document keeps its schemas.
const SCHEMAS: &str = "/components/schemas";

/// A route with what it takes and answers.
pub(crate) struct Documented<'a> {
    /// As the router has it.
    pub path: &'a str,
    /// In lower case.
    pub method: &'a str,
    /// What it takes and answers.
    pub operation: &'a Operation,
}

/// The document and the page, as they are sent.
#[derive(Debug, Clone)]
pub(crate) struct Documentation {
    /// `/openapi.json`.
    pub document: Bytes,
    /// `/docs`.
    pub page: Bytes,
}

impl Documentation {
    /// The documentation of these routes.
    pub(crate) fn of<'a>(routes: impl Iterator<Item = Documented<'a>>) -> Self {
        let document = document(routes);
        Documentation { page: page::render(&document).into(), document: document.to_string().into() }
    }
}

fn document<'a>(routes: impl Iterator<Item = Documented<'a>>) -> Value {
    let settings = SchemaSettings::draft2020_12().with(|settings| {
        settings.definitions_path = SCHEMAS.into();
        settings.meta_schema = None;
    });
    // What clients send may leave out what they need not say; what they get is there even where it is null.
    let mut sent = SchemaGenerator::new(settings.clone().for_deserialize());
    let mut got = SchemaGenerator::new(settings.for_serialize());
    let mut paths: Map<String, Value> = Map::new();
    for route in routes {
        let path = route.path.replace("{*", "{");
        let entry = paths.entry(path).or_insert_with(|| json!({}));
        entry[route.method] = operation(&route, (&mut sent, &mut got));
    }
    let mut schemas = sent.take_definitions(true);
    schemas.append(&mut got.take_definitions(true));
    schemas.sort_keys();
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Perilune", "version": env!("CARGO_PKG_VERSION"),
            "description": "An inference server for Kimi K3 and its relatives. Unknown fields of requests are ignored, null means absent.",
        },
        "paths": paths,
        "components": {"schemas": schemas, "securitySchemes": {
            "bearer": {"type": "http", "scheme": "bearer"},
            "key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
        }},
    })
}

fn operation(route: &Documented<'_>, (sent, got): (&mut SchemaGenerator, &mut SchemaGenerator)) -> Value {
    let Operation { tag, summary, about, body, answers, refusal } = route.operation;
    let refused =
        |status: u16| Answer { status, says: meaning(status), media: JSON, schema: Some(*refusal), stream: None };
    let locks: &[u16] = match access(route.path) {
        Access::Open => &[],
        Access::Users => &[401],
        Access::Admins => &[401, 403],
    };
    let mut responses: Map<String, Value> = Map::new();
    for answer in answers.iter().cloned().chain(locks.iter().map(|status| refused(*status))) {
        add_answer(&mut responses, &answer, got);
    }
    responses.sort_keys();
    let mut operation = json!({"tags": [tag], "summary": summary, "operationId": operation_id(route)});
    if !about.is_empty() {
        operation["description"] = json!(about);
    }
    if let Some(name) = route.path.split_once('{').map(|(_, rest)| rest.trim_matches(['*', '}'])) {
        operation["parameters"] = json!([{"name": name, "in": "path", "required": true, "schema": {"type": "string"}}]);
    }
    if let Some(body) = body {
        let content = json!({"schema": (body.schema)(sent), "example": body.example});
        operation["requestBody"] = json!({"required": true, "content": {JSON: content}});
    }
    operation["responses"] = Value::Object(responses);
    if !locks.is_empty() {
        // Keys are asked for only where the server was given some.
        operation["security"] = json!([{}, {"bearer": []}, {"key": []}]);
    }
    operation
}

fn add_answer(responses: &mut Map<String, Value>, answer: &Answer, got: &mut SchemaGenerator) {
    let Answer { status, says, media, schema, stream } = answer;
    let entry = responses.entry(status.to_string()).or_insert_with(|| json!({"description": says, "content": {}}));
    let schema = schema.map(|schema| schema(got));
    let schema = match (stream, schema) {
        (Some(end), Some(data)) => event(data, *end, got),
        (None, Some(schema)) => schema.to_value(),
        (_, None) => json!({"type": "string"}),
    };
    entry["content"][media] = json!({"schema": schema});
    if matches!(status, 429 | 503 | 529) {
        let seconds = json!({"description": "Seconds after which to try again.", "schema": {"type": "integer"}});
        entry["headers"] = json!({"Retry-After": seconds});
    }
}

/// One event of a stream, as OpenAPI 3.2 has it: an object of its fields. Its data is JSON of `data`, or what ends a stream.
fn event(data: Schema, end: StreamEnd, got: &mut SchemaGenerator) -> Value {
    let json = |schema: Schema| json!({"contentMediaType": JSON, "contentSchema": schema});
    let mut forms = vec![json(data)];
    let required = match end {
        StreamEnd::Done => {
            forms.extend([json(got.subschema_for::<ErrorBody>()), json!({"const": "[DONE]"})]);
            json!(["data"])
        }
        StreamEnd::Named => json!(["event", "data"]),
    };
    let data = json!({"type": "string", "anyOf": forms});
    json!({"type": "object", "properties": {"event": {"type": "string"}, "data": data}, "required": required})
}

/// `post_v1_chat_completions`.
fn operation_id(route: &Documented<'_>) -> String {
    let words = route.path.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    std::iter::once(route.method).chain(words).collect::<Vec<_>>().join("_")
}
