//! A payload, for the document: JSON without any null in it, which no type of Rust says by itself.

use utoipa::openapi::RefOr;
use utoipa::openapi::schema::{
    AdditionalProperties, AnyOfBuilder, ArrayBuilder, ObjectBuilder, Ref, Schema, Type,
};
use utoipa::{PartialSchema, ToSchema};

const VALUE: &str = "PayloadValue";

/// An object whose members are JSON without null.
pub(super) struct PayloadSchema;

fn members() -> ObjectBuilder {
    let values = RefOr::<Schema>::Ref(Ref::from_schema_name(VALUE));
    let others = AdditionalProperties::RefOr(values);
    ObjectBuilder::new().schema_type(Type::Object).additional_properties(Some(others))
}

impl PartialSchema for PayloadSchema {
    fn schema() -> RefOr<Schema> {
        let description = "An object without any null in it, however deep.";
        members().description(Some(description)).build().into()
    }
}

impl ToSchema for PayloadSchema {
    fn name() -> std::borrow::Cow<'static, str> {
        "Payload".into()
    }

    fn schemas(schemas: &mut Vec<(String, RefOr<Schema>)>) {
        let simple = |kind| ObjectBuilder::new().schema_type(kind);
        let value = AnyOfBuilder::new()
            .item(simple(Type::String))
            .item(simple(Type::Number))
            .item(simple(Type::Boolean))
            .item(ArrayBuilder::new().items(Ref::from_schema_name(VALUE)))
            .item(members())
            .description(Some("JSON without null."));
        schemas.push((VALUE.to_owned(), RefOr::T(Schema::AnyOf(value.build()))));
    }
}
