//! Enums whose variants are words in the configuration, in requests and in tables.

/// Declares an enum with one word per variant, and everything that goes with it: `ALL`, `WORDS`,
/// `as_str`, `Display`, `FromStr` (exact), serde by the word.
macro_rules! words {
    (
        $(#[$meta:meta])*
        $vis:vis enum $name:ident {
            $($(#[$variant_meta:meta])* $variant:ident = $word:literal,)+
        }
    ) => {
        $(#[$meta])*
        #[derive(
            Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash,
            serde::Serialize, serde::Deserialize,
        )]
        $vis enum $name {
            $($(#[$variant_meta])* #[serde(rename = $word)] $variant,)+
        }

        impl $name {
            /// Every variant, in the order of its declaration.
            pub const ALL: &'static [$name] = &[$($name::$variant),+];

            /// The words of [`Self::ALL`].
            pub const WORDS: &'static [&'static str] = &[$($word),+];

            /// The word.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self {
                    $($name::$variant => $word,)+
                }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.as_str())
            }
        }

        impl std::str::FromStr for $name {
            type Err = $crate::words::UnknownWord;

            fn from_str(text: &str) -> Result<$name, Self::Err> {
                $name::ALL.iter().copied().find(|value| value.as_str() == text).ok_or_else(|| {
                    $crate::words::UnknownWord { given: text.to_string(), legal: $name::WORDS }
                })
            }
        }
    };
}

pub(crate) use words;

/// A text is none of the legal words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownWord {
    /// The text.
    pub given: String,
    /// The legal words.
    pub legal: &'static [&'static str],
}

impl std::fmt::Display for UnknownWord {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?} is none of {}", self.given, self.legal.join(", "))?;
        match crate::nearest::nearest(&self.given, self.legal.iter().copied()) {
            Some(word) => write!(f, "; did you mean {word:?}?"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for UnknownWord {}
