//! Amounts of Kubernetes quantities, to compare and add them. Text stays as the user wrote it wherever it is only passed on.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

/// An amount in billionths, so that every suffix from `n` to `Ei` is whole: 2^63 × 10^9 < 2^93 fits well.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Amount(u128);

const NANO: u128 = 1_000_000_000;

impl Amount {
    /// Reads a quantity. `None` for text that the schema refuses, for negative and for absurdly large amounts.
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        let split = text.find(|character: char| !character.is_ascii_digit() && character != '.').unwrap_or(text.len());
        let (number, suffix) = text.split_at(split);
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
            return None;
        }
        let (numerator, denominator) = factor(suffix)?;
        let digits: u128 = format!("{whole}{fraction}").parse().ok()?;
        let scale = 10_u128.checked_pow(u32::try_from(fraction.len()).ok()?)?.checked_mul(denominator)?;
        let product = digits.checked_mul(numerator)?.checked_mul(NANO)?;
        Some(Self(product.div_ceil(scale)))
    }

    /// Reads a quantity object.
    pub fn of(quantity: &Quantity) -> Option<Self> {
        Self::parse(&quantity.0)
    }

    /// Whole units (bytes), rounded up.
    pub fn whole(self) -> Option<u64> {
        u64::try_from(self.0.div_ceil(NANO)).ok()
    }

    /// The sum, as whole units (bytes).
    pub fn plus(self, other: Self) -> Quantity {
        Quantity((self.0.saturating_add(other.0)).div_ceil(NANO).to_string())
    }
}

/// The factor of a suffix as a fraction.
fn factor(suffix: &str) -> Option<(u128, u128)> {
    let binary = |power: u32| Some((1_u128 << (10 * power), 1));
    let decimal = |power: u32| Some((10_u128.pow(power), 1));
    match suffix {
        "" => Some((1, 1)),
        "n" => Some((1, NANO)),
        "u" => Some((1, 1_000_000)),
        "m" => Some((1, 1_000)),
        "k" => decimal(3),
        "M" => decimal(6),
        "G" => decimal(9),
        "T" => decimal(12),
        "P" => decimal(15),
        "E" => decimal(18),
        "Ki" => binary(1),
        "Mi" => binary(2),
        "Gi" => binary(3),
        "Ti" => binary(4),
        "Pi" => binary(5),
        "Ei" => binary(6),
        exponent => {
            let power: i32 = exponent.strip_prefix(['e', 'E'])?.parse().ok()?;
            let size = 10_u128.checked_pow(power.unsigned_abs()).filter(|_| power.unsigned_abs() <= 18)?;
            Some(if power < 0 { (1, size) } else { (size, 1) })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn amount(text: &str) -> Amount {
        Amount::parse(text).expect(text)
    }

    #[test]
    fn equal_amounts_are_equal_whatever_their_unit() {
        assert_eq!(amount("1Gi"), amount("1024Mi"));
        assert_eq!(amount("1073741824"), amount("1Gi"));
        assert_eq!(amount("1.5Gi"), amount("1536Mi"));
        assert_eq!(amount("250m"), amount("0.25"));
        assert_eq!(amount("1e3"), amount("1k"));
        assert_eq!(amount("5E-1"), amount("500m"));
        assert!(amount("10G") < amount("10Gi"));
        assert!(amount("1Ei") > amount("1E"));
    }

    #[test]
    fn sums_are_whole_bytes() {
        assert_eq!(amount("2Gi").plus(amount("1Mi")), Quantity("2148532224".to_owned()));
    }

    #[test]
    fn text_that_is_no_quantity_is_refused() {
        for text in ["", ".", "Gi", "-1", "1.2.3", "1Zi", "1e", "1e99", "ten", "99999999999999999999999999999999999999"]
        {
            assert_eq!(Amount::parse(text), None, "{text}");
        }
    }
}
