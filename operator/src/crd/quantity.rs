//! Schema of Kubernetes quantities: an integer or a string such as `10Gi`.

use schemars::{Schema, SchemaGenerator, json_schema};

/// Longest quantity: 19 digits, a point, 3 digits and a suffix need 26 characters.
pub const QUANTITY_MAX_LENGTH: u32 = 32;
/// Quantities without a sign; the grammar of `resource.Quantity` otherwise.
pub const QUANTITY_PATTERN: &str = r"^([0-9]+(\.[0-9]*)?|\.[0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]+)?$";

/// Schema of one quantity. Integers are no strings, so length and pattern hold for text alone.
pub(super) fn quantity(_generator: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "x-kubernetes-int-or-string": true,
        "maxLength": QUANTITY_MAX_LENGTH,
        "pattern": QUANTITY_PATTERN,
    })
}

/// Schema of quantities by resource name.
pub(super) fn quantity_map(generator: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "maxProperties": 16,
        "additionalProperties": quantity(generator),
    })
}
