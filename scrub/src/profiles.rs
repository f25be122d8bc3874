//! Policies to start from, of the folder `profiles`.

/// Servers of any kind under attack.
pub const SERVER: &str = include_str!("../profiles/server.toml");
/// Web servers.
pub const WEB: &str = include_str!("../profiles/web.toml");

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::Policy;

    #[test]
    fn each_is_a_policy() {
        for text in [SERVER, WEB] {
            Policy::parse(text).unwrap();
        }
    }
}
