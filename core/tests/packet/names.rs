//! Names that mean nothing here: the message says what would.

use sluicegate::port::{Directions, OpenOptions, Port};

use crate::{lab, try_open};

#[test]
fn an_interface_in_another_namespace_is_found_there() {
    let Some(lab) = lab() else { return };
    let error =
        try_open(&lab, "left", "packet:right0", Directions::Receive).unwrap_err().to_string();
    let right = lab.netns("right");
    assert!(error.starts_with("no interface 'right0'; available: lo"), "{error}");
    // Other labs may have an interface of that name too.
    assert!(
        error.contains(" an interface of that name: ") && error.contains("use --netns "),
        "{error}"
    );
    let name = format!("unique{}", std::process::id());
    crate::run(&lab, "right", &format!("ip link add {name} type veth peer name other"));
    let error = try_open(&lab, "left", &name, Directions::Receive).unwrap_err().to_string();
    assert!(error.ends_with(&format!("use --netns {right}")), "{error}");
    let error = Port::open(&name.parse().unwrap(), &OpenOptions::default()).unwrap_err();
    assert!(error.to_string().ends_with(&format!("use --netns {right}")), "{error}");
}

#[test]
fn an_interface_of_this_namespace_is_named_where_another_was_asked() {
    let Some(lab) = lab() else { return };
    let here = sluicegate::link::interfaces(None).unwrap();
    let known = ["lo", "left0", "right0"];
    let Some(only_here) = here.iter().find(|i| !known.contains(&i.name.as_str())) else {
        println!(
            "skipped: needs an interface besides loopback; get it by a namespace that has one"
        );
        return;
    };
    let error =
        try_open(&lab, "left", &only_here.name, Directions::Receive).unwrap_err().to_string();
    assert!(error.contains("leave --netns out") || error.contains("use --netns"), "{error}");
}

#[test]
fn an_unknown_interface_or_namespace_is_refused_with_those_that_exist() {
    let options = OpenOptions::default();
    let refuse = |name: &str, options: &OpenOptions| {
        Port::open(&name.parse().unwrap(), options).unwrap_err().to_string()
    };
    let error = refuse("packet:no-such-iface", &options);
    assert!(error.starts_with("no interface 'no-such-iface'; available: "), "{error}");
    let error = refuse("packet:lo/0-256", &options);
    assert!(error.contains("at most 256 queues"), "{error}");
    let error = refuse("mirror:any", &options);
    assert!(error.contains("'any' is for packet: ports that receive"), "{error}");
    let both = OpenOptions { usage: Directions::Both, ..OpenOptions::default() };
    let error = refuse("packet:any", &both);
    assert!(error.contains("'any' is for packet: ports that receive"), "{error}");
    let nowhere = OpenOptions { netns: Some("no-such-namespace".into()), ..options };
    let error = refuse("lo", &nowhere);
    assert!(error.starts_with("no network namespace 'no-such-namespace'; "), "{error}");
    for (netns, reason) in [
        ("..", "cannot be a network namespace's name"),
        ("../no-such-file", "there is no such file"),
        ("/tmp", "is not a network namespace"),
    ] {
        let outside = OpenOptions { netns: Some(netns.into()), ..OpenOptions::default() };
        let error = refuse("lo", &outside);
        assert!(error.contains(reason), "{netns}: {error}");
    }
}
