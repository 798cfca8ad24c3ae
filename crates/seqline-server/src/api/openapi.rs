//! The OpenAPI document: made from the code that answers, and completed here with what all answers have in common.

use utoipa::openapi::header::Header;
use utoipa::openapi::path::{Operation, Parameter, ParameterIn, PathItem};
use utoipa::openapi::schema::{ObjectBuilder, Schema, SchemaType, Type};
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::openapi::{Content, OpenApi, Ref, RefOr, Response, ResponseBuilder};
use utoipa::{Modify, OpenApi as _};

use super::Problem;
use super::problem::{Document, Fault};
use super::server::REQUEST_ID;

/// The name by which operations say that a token is needed.
pub(super) const TOKEN: &str = "token";

/// The tag of what operators may do.
pub(super) const OPERATORS: &str = "operators";

/// What is not about a single resource.
#[derive(utoipa::OpenApi)]
#[openapi(
    info(
        title = "Seqline",
        description = "A durable, gapless, commit-ordered event log inside PostgreSQL, over HTTP. Positions are texts of the form \
            `<epoch>:<number>`; give them back as you got them. Whatever is refused is answered with `application/problem+json` \
            and a `code` that stays the same.",
    ),
    components(schemas(Document<'_>, Fault)),
    modifiers(&Security),
)]
pub(super) struct Base;

struct Security;

impl Modify for Security {
    fn modify(&self, openapi: &mut OpenApi) {
        let scheme = HttpBuilder::new()
            .scheme(HttpAuthScheme::Bearer)
            .bearer_format("token")
            .description(Some("A token of Seqline, or of an identity provider where one is configured."));
        let components = openapi.components.get_or_insert_default();
        components.add_security_scheme(TOKEN, SecurityScheme::Http(scheme.build()));
    }
}

pub(super) fn base() -> OpenApi {
    Base::openapi()
}

/// Adds to each operation the refusals that every one of its kind can be answered with, and the headers that all answers have.
pub(super) fn complete(mut openapi: OpenApi) -> OpenApi {
    for (path, item) in &mut openapi.paths.paths {
        for (changes, operation) in operations(item) {
            for parameter in operation.parameters.iter_mut().flatten() {
                if let RefOr::T(parameter) = parameter {
                    forbid_null(parameter);
                }
            }
            for status in refusals(path, changes, operation) {
                operation.responses.responses.entry(status.to_owned()).or_insert_with(|| refusal(status));
            }
            for (status, response) in &mut operation.responses.responses {
                if let RefOr::T(response) = response {
                    describe_headers(status, response);
                }
            }
        }
    }
    openapi
}

/// What an operation can be refused with, beside what it says itself.
fn refusals(path: &str, changes: bool, operation: &Operation) -> Vec<&'static str> {
    let mut statuses = vec!["500", "503"];
    let has = |place: ParameterIn| {
        let mut parameters = operation.parameters.iter().flatten();
        parameters.any(|parameter| matches!(parameter, RefOr::T(of) if of.parameter_in == place))
    };
    let is_of_operators = operation.tags.as_ref().is_some_and(|tags| tags.iter().any(|tag| tag == OPERATORS));
    if operation.security.is_some() {
        statuses.extend(["401", "429"]);
    }
    // Whoever only reads sees what it may see; all else needs a right.
    if is_of_operators || changes {
        statuses.push("403");
    }
    if operation.request_body.is_some() {
        statuses.extend(["400", "408", "413", "415", "422"]);
    }
    if has(ParameterIn::Header) {
        statuses.push("400");
    }
    if has(ParameterIn::Path) {
        statuses.push("404");
    }
    if is_of_operators && has(ParameterIn::Query) {
        statuses.push("422");
    }
    // What operators ask can be more than how things are allows. Jobs have a schema of their own, which can be missing.
    if is_of_operators && (changes || path.starts_with("/v1/jobs")) {
        statuses.push("409");
    }
    statuses
}

fn describe_headers(status: &str, response: &mut Response) {
    let header = |kind: Type, description: &str| {
        let mut header = Header::new(ObjectBuilder::new().schema_type(kind));
        header.description = Some(description.to_owned());
        RefOr::T(header)
    };
    let id = "The id of the request, by which the log of the server knows it.";
    response.headers.insert(REQUEST_ID.to_string(), header(Type::String, id));
    match status {
        "401" => {
            let how = header(Type::String, "`Bearer`: send a token.");
            response.headers.insert("WWW-Authenticate".to_owned(), how);
        }
        "409" | "429" | "503" => {
            let when = header(Type::Integer, "After how many seconds to come again, if that helps.");
            response.headers.insert("Retry-After".to_owned(), when);
        }
        _ => {}
    }
}

/// A parameter is there or not: a text has no null.
fn forbid_null(parameter: &mut Parameter) {
    if let Some(RefOr::T(Schema::Object(schema))) = &mut parameter.schema
        && let SchemaType::Array(types) = &mut schema.schema_type
    {
        types.retain(|of| *of != Type::Null);
        if let [only] = types.as_slice() {
            schema.schema_type = SchemaType::Type(only.clone());
        }
    }
}

/// Each with whether it changes anything.
fn operations(item: &mut PathItem) -> impl Iterator<Item = (bool, &mut Operation)> {
    let PathItem { get, put, post, delete, patch, .. } = item;
    let all = [(false, get), (true, put), (true, post), (true, delete), (true, patch)];
    all.into_iter().filter_map(|(changes, operation)| Some((changes, operation.as_mut()?)))
}

fn refusal(status: &str) -> RefOr<Response> {
    let description = match status {
        "400" => "The request cannot be read.",
        "401" => "No token, or one that is not valid.",
        "403" => "A right is missing.",
        "404" => "There is nothing here that who asks may see.",
        "408" => "The body did not come in time.",
        "409" => "What is there does not allow it now.",
        "413" => "The body is too large.",
        "415" => "The body is no JSON.",
        "422" => "The request breaks a rule.",
        "429" => "Too many requests: come again after `Retry-After`.",
        "503" => "Not available now: come again after `Retry-After`.",
        _ => "A fault of the server.",
    };
    let content = Content::new(Some(Ref::from_schema_name("Problem")));
    ResponseBuilder::new().description(description).content(Problem::CONTENT_TYPE, content).build().into()
}
