//! The documentation of specifications agrees with the code.

use std::path::Path;

use sluicegate_traffic::spec::{PROFILES, Spec};

use crate::plan;

/// Returns the page; `None` if the crate is outside the repository.
fn page() -> Option<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/generate.md");
    let page = std::fs::read_to_string(path).ok();
    if page.is_none() {
        println!("skipped: needs docs/generate.md; get it by a clone of the repository");
    }
    page
}

/// Returns the text between backquotes.
fn quoted(text: &str) -> Vec<&str> {
    text.split('`').skip(1).step_by(2).collect()
}

#[test]
fn the_example_is_a_specification() {
    let Some(page) = page() else { return };
    let lines = page.lines().skip_while(|line| *line != "    seed = 7");
    let example: Vec<_> = lines.take_while(|line| !line.starts_with("The file")).collect();
    let plan = plan(&example.join("\n"));
    assert_eq!((plan.seed, plan.streams.len()), (7, 2));
    assert_eq!(plan.turns, [0, 0, 1, 0]);
}

#[test]
fn all_layers_and_fields_are_in_the_table() {
    let Some(page) = page() else { return };
    let error = |layer: &str| {
        let text = format!("[[stream]]\nlayers = [{layer}]\n");
        Spec::parse(&text).unwrap_err().to_string().lines().next().unwrap_or_default().to_owned()
    };
    let listed = |error: &str, after: &str| -> Vec<String> {
        let list = error.split_once(after).map_or("", |(_, list)| list);
        list.split(", ").filter(|name| !name.is_empty()).map(str::to_owned).collect()
    };
    let layers = listed(&error("'x'"), "available: ");
    assert!(layers.len() > 15);
    for layer in layers {
        let row = page.lines().find(|line| line.starts_with(&format!("| `{layer}` |")));
        let row = row.unwrap_or_else(|| panic!("no row of {layer}"));
        let fields = row.split('|').nth(2).unwrap_or_default();
        let has = listed(&error(&format!("{{ \"{layer}\" = {{ x = 1 }} }}")), "it has ");
        assert_eq!(quoted(fields), has, "{layer}");
    }
}

#[test]
fn all_profiles_are_in_the_table() {
    let Some(page) = page() else { return };
    let (_, table) = page.split_once("## Profiles").unwrap();
    for profile in PROFILES.iter().filter(|profile| !profile.name.starts_with("rfc2544-")) {
        assert!(table.contains(&format!("| `{}` |", profile.name)), "{}", profile.name);
    }
}
