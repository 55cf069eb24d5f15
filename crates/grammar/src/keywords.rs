//! Which keywords of JSON Schema (draft 2020-12, and the older spellings in use) are enforced, which say nothing about
//! what is valid, and which are refused. A word in none of the lists is no keyword; it is ignored, as validators do.

/// Enforced; their values are checked in `schema`.
pub(crate) const ENFORCED: &[&str] = &[
    "$ref",
    "additionalItems",
    "additionalProperties",
    "allOf",
    "anyOf",
    "const",
    "enum",
    "exclusiveMaximum",
    "exclusiveMinimum",
    "format",
    "items",
    "maxItems",
    "maxLength",
    "maxProperties",
    "maximum",
    "minItems",
    "minLength",
    "minProperties",
    "minimum",
    "multipleOf",
    "oneOf",
    "pattern",
    "patternProperties",
    "prefixItems",
    "properties",
    "required",
    "type",
];

/// Would change what is valid, and cannot be enforced.
pub(crate) const REFUSED: &[(&str, &str)] = &[
    ("$dynamicRef", "use `$ref`"),
    ("$recursiveRef", "use `$ref`"),
    ("contains", "leave it out and check the answer"),
    ("dependencies", "use `anyOf` with `required`"),
    ("dependentRequired", "use `anyOf` with `required`"),
    ("dependentSchemas", "use `anyOf`"),
    ("else", "use `anyOf`"),
    ("if", "use `anyOf`"),
    ("maxContains", "leave it out and check the answer"),
    ("minContains", "leave it out and check the answer"),
    ("not", "say what is allowed instead"),
    ("propertyNames", "use `patternProperties`"),
    ("then", "use `anyOf`"),
    ("unevaluatedItems", "use `items: false`"),
    ("unevaluatedProperties", "use `additionalProperties: false`"),
    ("uniqueItems", "leave it out and check the answer"),
    ("x-guidance", "it is no keyword of JSON Schema"),
];

/// Formats of strings that are enforced.
pub(crate) const FORMATS: &[&str] =
    &["date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "unknown", "uri", "uuid"];

/// The names of types.
pub(crate) const TYPES: &[&str] = &["array", "boolean", "integer", "null", "number", "object", "string"];
