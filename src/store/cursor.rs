use std::fmt;
use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

/// Where the next page begins: opaque to whoever holds it, stable while rows come and go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cursor(pub(super) i64);

/// The text is no cursor that this program handed out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the cursor is not one from an earlier page")]
pub struct InvalidCursor;

/// Some rows, and where the next ones begin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page<T, C = Cursor> {
    /// At most as many as were asked for.
    pub items: Vec<T>,
    /// Absent on the last page.
    pub next: Option<C>,
}

impl<T, C> Page<T, C> {
    /// Cuts what was fetched to the page: one row more than `limit` means that there is another page, which begins
    /// after the last row kept.
    pub(super) fn cut(mut items: Vec<T>, limit: u32, after: impl Fn(&T) -> C) -> Self {
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        let more = items.len() > limit;
        items.truncate(limit);
        let next = if more { items.last().map(after) } else { None };
        Self { items, next }
    }
}

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&URL_SAFE_NO_PAD.encode(self.0.to_be_bytes()))
    }
}

impl FromStr for Cursor {
    type Err = InvalidCursor;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut bytes = [0; 8];
        match URL_SAFE_NO_PAD.decode_slice(text, &mut bytes) {
            Ok(8) => Ok(Self(i64::from_be_bytes(bytes))),
            _ => Err(InvalidCursor),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_cursor_survives_its_text(position: i64) {
            prop_assert_eq!(Cursor(position).to_string().parse(), Ok(Cursor(position)));
        }

        #[test]
        fn no_text_panics(text in ".{0,40}") {
            let _ = text.parse::<Cursor>();
        }
    }

    #[test]
    fn a_page_ends_where_the_rows_do() {
        assert_eq!(Page::cut(vec![1, 2], 2, |row| Cursor(*row)).next, None);
        assert_eq!(Page::cut(vec![1, 2, 3], 2, |row| Cursor(*row)).next, Some(Cursor(2)));
    }
}
