//! Whether a value is as a JSON Schema says, for as much of JSON Schema as the one of the gateway uses.

use serde_json::Value;

/// Of keywords that say something to a reader alone.
const SAYS_NOTHING: [&str; 8] =
    ["$schema", "$defs", "title", "description", "default", "example", "examples", "format"];

/// What is wrong with a value, if something is.
pub(super) fn fault(document: &Value, schema: &Value, value: &Value) -> Option<String> {
    let all = schema.as_object()?;
    all.iter().find_map(|(keyword, says)| {
        let is_right = match keyword.as_str() {
            "$ref" => {
                let path = says.as_str()?.strip_prefix('#').expect("it is in this document");
                let target = document.pointer(path).unwrap_or_else(|| panic!("{path} is not there"));
                return fault(document, target, value);
            }
            "allOf" => return says.as_array()?.iter().find_map(|one| fault(document, one, value)),
            "oneOf" => {
                let faults = says.as_array()?.iter().map(|one| fault(document, one, value));
                let faults: Vec<_> = faults.collect();
                if faults.iter().filter(|fault| fault.is_none()).count() == 1 {
                    return None;
                }
                return Some(format!("not one of these: {faults:?}"));
            }
            "properties" => {
                let members = value.as_object()?;
                let of = |(name, member): (&String, &Value)| {
                    fault(document, says.get(name)?, member).map(|fault| format!("{name}: {fault}"))
                };
                return members.iter().find_map(of);
            }
            "items" => return value.as_array()?.iter().find_map(|item| fault(document, says, item)),
            "required" => {
                says.as_array()?.iter().all(|name| value.get(name.as_str().unwrap_or_default()).is_some())
            }
            "additionalProperties" => {
                let members = value.as_object()?;
                *says != false || members.keys().all(|name| schema["properties"].get(name).is_some())
            }
            "type" => match says {
                Value::Array(types) => types.iter().any(|one| has_type(value, one)),
                one => has_type(value, one),
            },
            "enum" => says.as_array()?.contains(value),
            "const" => says == value,
            "minimum" => value.as_f64().is_none_or(|number| number >= says.as_f64().unwrap_or_default()),
            "maximum" => value.as_f64().is_none_or(|number| number <= says.as_f64().unwrap_or_default()),
            "maxLength" => {
                value.as_str().is_none_or(|text| text.chars().count() as u64 <= says.as_u64().unwrap())
            }
            "minLength" => {
                value.as_str().is_none_or(|text| text.chars().count() as u64 >= says.as_u64().unwrap())
            }
            // Names and the like, which have tests of their own.
            "pattern" | "propertyNames" => true,
            other if SAYS_NOTHING.contains(&other) => true,
            other => panic!("the schema has {other}, which nothing here knows"),
        };
        (!is_right).then(|| format!("{keyword} is {says}, and this is {value}"))
    })
}

fn has_type(value: &Value, name: &Value) -> bool {
    match name.as_str().expect("a type has a name") {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        other => panic!("no type: {other}"),
    }
}
