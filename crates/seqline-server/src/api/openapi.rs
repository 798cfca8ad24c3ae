//! The OpenAPI document: made from the code that answers, and completed here with what all answers have in common.

use utoipa::openapi::path::{Operation, Parameter, PathItem};
use utoipa::openapi::schema::{Schema, SchemaType, Type};
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::openapi::{Content, OpenApi, Ref, RefOr, ResponseBuilder};
use utoipa::{Modify, OpenApi as _};

use super::Problem;
use super::problem::{Document, Fault};

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

/// Adds to each operation the refusals that every one of its kind can be answered with.
pub(super) fn complete(mut openapi: OpenApi) -> OpenApi {
    for (path, item) in &mut openapi.paths.paths {
        let has_parameters = path.contains('{');
        for operation in operations(item) {
            let mut statuses = vec!["500", "503"];
            if operation.security.is_some() {
                statuses.extend(["401", "403", "429"]);
            }
            if operation.parameters.as_ref().is_some_and(|parameters| !parameters.is_empty()) {
                statuses.push("400");
            }
            if operation.request_body.is_some() {
                statuses.extend(["400", "408", "413", "415", "422"]);
            }
            if has_parameters {
                statuses.push("404");
            }
            for parameter in operation.parameters.iter_mut().flatten() {
                if let RefOr::T(parameter) = parameter {
                    forbid_null(parameter);
                }
            }
            // What operators ask can be more than how things are allows, and is checked more closely than by its form.
            if operation.tags.as_ref().is_some_and(|tags| tags.iter().any(|tag| tag == OPERATORS)) {
                statuses.extend(["409", "422"]);
            }
            for status in statuses {
                operation.responses.responses.entry(status.to_owned()).or_insert_with(|| refusal(status));
            }
        }
    }
    openapi
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

fn operations(item: &mut PathItem) -> impl Iterator<Item = &mut Operation> {
    let PathItem { get, put, post, delete, patch, .. } = item;
    [get, put, post, delete, patch].into_iter().flatten()
}

fn refusal(status: &str) -> RefOr<utoipa::openapi::Response> {
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
