//! Canonical JSON (RFC 8785, JSON Canonicalization Scheme).
//!
//! Object members sorted by their names' UTF-16 code units, no insignificant whitespace, numbers and strings as
//! `JSON.stringify` prints them. Integers beyond 2^53 - 1 lose digits here as they do in JavaScript: whoever reads
//! foreign numbers refuses those first.

use serde::Serialize;

/// The canonical form of `value`.
///
/// # Errors
/// The value has no JSON form: a number that is not finite, a map whose keys are not strings, or a raw value.
pub fn to_vec(value: &impl Serialize) -> Result<Vec<u8>, serde_json::Error> {
    serde_json_canonicalizer::to_vec(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn canonical(text: &str) -> String {
        let value: serde_json::Value = serde_json::from_str(text).unwrap();
        String::from_utf8(to_vec(&value).unwrap()).unwrap()
    }

    /// RFC 8785 section 3.2.2 (numbers, literals and a string with every kind of escape) and 3.2.3 (sorting).
    #[test]
    fn the_rfc_s_own_example() {
        let input = r#"{
            "numbers": [333333333.33333329, 1E30, 4.50, 2e-3, 0.000000000000000000000000001],
            "string": "\u20ac$\u000F\u000aA'\u0042\u0022\u005c\\\"\/",
            "literals": [null, true, false]
        }"#;
        let expected = r#"{"literals":[null,true,false],"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],"string":"€$\u000f\nA'B\"\\\\\"/"}"#;
        assert_eq!(canonical(input), expected);
    }

    /// RFC 8785 section 3.2.3: by UTF-16 code units, so the emoji (a surrogate pair) comes before U+FB33.
    #[test]
    fn members_sort_by_utf_16_code_units() {
        let input = r#"{"\u20ac":"Euro Sign","\r":"Carriage Return","\ufb33":"Hebrew Letter Dalet With Dagesh",
            "1":"One","\ud83d\ude00":"Emoji: Grinning Face","\u0080":"Control","\u00f6":"Latin Small Letter O With Diaeresis"}"#;
        let form = canonical(input);
        let order = ["\"\\r\"", "\"1\"", "\"\u{80}\"", "\"ö\"", "\"€\"", "\"😀\"", "\"\u{fb33}\""];
        let places: Vec<_> = order.iter().map(|key| form.find(key).expect(key)).collect();
        assert!(places.is_sorted(), "{form}");
    }

    /// RFC 8785 appendix B: doubles by their bits, and how they print.
    #[test]
    fn numbers_print_as_in_ecmascript() {
        for (bits, expected) in [
            (0x0000_0000_0000_0000_u64, "0"),
            (0x8000_0000_0000_0000, "0"),
            (0x0000_0000_0000_0001, "5e-324"),
            (0x8000_0000_0000_0001, "-5e-324"),
            (0x7fef_ffff_ffff_ffff, "1.7976931348623157e+308"),
            (0x4340_0000_0000_0000, "9007199254740992"),
            (0xc340_0000_0000_0000, "-9007199254740992"),
            (0x4430_0000_0000_0000, "295147905179352830000"),
            (0x44b5_2d02_c7e1_4af5, "9.999999999999997e+22"),
            (0x44b5_2d02_c7e1_4af6, "1e+23"),
            (0x444b_1ae4_d6e2_ef4e, "999999999999999700000"),
            (0x444b_1ae4_d6e2_ef50, "1e+21"),
            (0x3eb0_c6f7_a0b5_ed8c, "9.999999999999997e-7"),
            (0x3eb0_c6f7_a0b5_ed8d, "0.000001"),
            (0x41b3_de43_5555_5553, "333333333.3333332"),
            (0x41b3_de43_5555_5557, "333333333.33333343"),
            (0xbecb_f647_612f_3696, "-0.0000033333333333333333"),
        ] {
            let form = to_vec(&f64::from_bits(bits)).unwrap();
            assert_eq!(String::from_utf8(form).unwrap(), expected, "{bits:#x}");
        }
        assert!(to_vec(&f64::INFINITY).is_err());
        assert!(to_vec(&f64::NAN).is_err());
    }
}
