//! Tests of the route table.

use super::*;

#[test]
fn each_path_matches_exactly_one_route() {
    for route in Route::ALL {
        let Row { paths, whole, .. } = route.row();
        for own in paths.iter().chain(*whole) {
            let example = own.replace('*', "m");
            let owners: Vec<_> = Route::ALL.into_iter().filter(|other| other.row().matches(&example)).collect();
            assert_eq!(owners, [route], "{own}");
            assert_eq!(Route::of_target(&example), route);
        }
        for own in *paths {
            let example = format!("/engine1{}", own.replace('*', "m"));
            assert_eq!(Route::of_target(&example), route, "{example}");
        }
    }
}

#[test]
fn paths_that_resemble_an_api_are_other() {
    for path in [
        "/v1/messages/count_tokens",
        "/v1/responses/resp_1",
        "/v1/responses//cancel",
        "/v1/chat/completions/batch",
        "/v1/chat/completions/render",
        "/v1/completions/render",
        "/v2/models//generate",
        "/v2/models/m/infer",
        "/v1/images/generate",
        "/engine1/completions",
        "/engine1/",
        "/tokenize",
        "/v1/encode",
        "/xv1/completions",
        "xv1/completions",
        "chat/completions",
        "*",
        "",
    ] {
        assert_eq!(Route::of_target(path), Route::Other, "{path}");
    }
}

#[test]
fn absolute_form_query_and_trailing_slash_are_ignored() {
    for target in [
        "/v1/chat/completions?api-version=1",
        "/v1/chat/completions/",
        "/openai/deployments/m/chat/completions?x=/generate",
        "http://engine:8000/v1/chat/completions",
    ] {
        assert_eq!(Route::of_target(target), Route::Chat, "{target}");
    }
    assert_eq!(Route::of_target("http://engine:8000/generate"), Route::Generate);
    for target in ["/", "/?x", "http://engine:8000", "http://engine:8000/"] {
        assert_eq!(Route::of_target(target), Route::TgiCompat, "{target}");
    }
}

#[test]
fn route_requires_the_method_of_its_api() {
    assert_eq!(Route::of_request("POST", "/v1/responses"), Route::Responses);
    assert_eq!(Route::of_request("GET", "/v1/responses"), Route::Other);
    assert_eq!(Route::of_request("POST", "/"), Route::TgiCompat);
    assert_eq!(Route::of_request("PUT", "/generate"), Route::Generate);
    assert_eq!(Route::of_request("PUT", "/v1/chat/completions"), Route::Other);
    assert_eq!(Route::of_request("GET", "/v1/realtime?model=m"), Route::Realtime);
    assert_eq!(Route::of_request("POST", "/v1/realtime"), Route::Other);
}

#[test]
fn undecoded_routes_are_counted_as_other() {
    for route in Route::ALL {
        assert_eq!(route.operation() == "other", !route.is_read(), "{route:?}");
        assert!(route.is_read() || !route.generates());
    }
    assert_eq!((Route::Chat.operation(), Route::Completions.operation()), ("chat", "text_completion"));
}

#[test]
fn only_queries_about_the_server_are_probes() {
    for path in ["/", "/health", "/engine1/metrics", "/v1/models", "/v1/models/m", "/v2/models/m/ready", "/slots"] {
        for method in ["GET", "HEAD", "OPTIONS"] {
            assert_eq!(Route::of_request(method, path), Route::Probe, "{path}");
        }
        for method in ["POST", "PUT", "DELETE"] {
            assert_ne!(Route::of_request(method, path), Route::Probe, "{path}");
        }
    }
    for path in ["/v1/files", "/engine1/", "/engine1/load", "/v1/chat/completions", "/v1/models/m/x", "/xhealth"] {
        assert_eq!(Route::of_request("GET", path), Route::Other, "{path}");
    }
}

#[test]
fn route_names_round_trip() {
    for name in Route::names() {
        assert_eq!(Route::of_name(name).map(Route::name), Some(name));
    }
    assert_eq!(Route::of_name("Chat"), None);
}

/// An example of every known path, with the route and a method of its API.
fn examples() -> Vec<(String, Route, &'static str)> {
    let of = |route: Route| {
        let row = route.row();
        let method = if route == Route::Probe { "GET" } else { row.methods[0] };
        let paths = row.paths.iter().chain(row.whole).filter(move |path| method != "GET" || **path != "/");
        paths.map(move |path| (path.replace('*', "m"), route, method))
    };
    Route::ALL.into_iter().flat_map(of).collect()
}

/// The path with the byte at each index replaced, one at a time, if `written` writes it differently.
fn each_byte(path: &str, written: impl Fn(u8) -> Option<String>) -> Vec<String> {
    let bytes = path.bytes().enumerate();
    bytes.filter_map(|(at, byte)| Some([&path[..at], &written(byte)?, &path[at + 1..]].concat())).collect()
}

fn every_byte(path: &str, written: impl Fn(u8) -> String) -> String {
    path.bytes().map(written).collect()
}

/// The targets that some server reads as this path (tests/live/routes.py compares them with real servers).
fn written(path: &str) -> Vec<String> {
    let slash = |written: &'static str| move |byte: u8| (byte == b'/').then(|| written.to_owned());
    let mut targets = Vec::new();
    // uvicorn, llama.cpp, Go. The first slash must remain, because it distinguishes the form of the target.
    let (first, rest) = path.split_at(1);
    for more in each_byte(rest, |byte| Some(format!("%{byte:02x}")))
        .into_iter()
        .chain(each_byte(rest, |byte| Some(format!("%{byte:02X}"))))
        .chain([every_byte(rest, |byte| format!("%{byte:02x}"))])
        // llama.cpp
        .chain(each_byte(rest, |byte| Some(format!("%u{byte:04x}"))))
    {
        targets.push(first.to_owned() + &more);
    }
    // Starlette
    targets.push(path.to_owned() + "%0a");
    // Proxies
    for odd in ["//", "/./", "/%2e/", "/x/../", "/x/%2E%2e/", "/%2F"] {
        targets.extend(each_byte(path, slash(odd)));
    }
    targets.push("/..".to_owned() + path);
    // A trailing slash, a query and a fragment
    for end in ["/", "//", "%2F", "?x=/v1/y", "?%2e%", "#x", "/?x=1#y"] {
        targets.push(path.to_owned() + end);
    }
    // The absolute form. Without an authority, the path must not begin with two slashes.
    let absolute = |target: &String| {
        let origins = ["http://h", "HTTPS://h:1", "ws://u@h", "http://", "http:"];
        let origins = origins.into_iter().filter(|origin| *origin != "http:" || !target.starts_with("//"));
        origins.map(|origin| origin.to_owned() + target).collect::<Vec<_>>()
    };
    let absolute: Vec<_> = targets.iter().chain([&path.to_owned()]).flat_map(absolute).collect();
    targets.extend(absolute);
    targets
}

#[test]
fn route_is_found_however_a_server_accepts_its_path() {
    let mut compared = 0;
    for (path, route, method) in examples() {
        for target in written(&path) {
            assert_eq!(Route::of_request(method, &target), route, "{method} {target}");
            compared += 1;
        }
    }
    assert!(compared > 10_000, "{compared}");
}

#[test]
fn targets_that_no_server_accepts_are_other() {
    let mut compared = 0;
    for (path, _, method) in examples() {
        let end = path.rfind('/').unwrap() + 1;
        let (start, name) = path.split_at(end);
        // `*` matches any name, and the path without a name is that of TGI.
        if name == "m" || name.is_empty() {
            continue;
        }
        let twice =
            each_byte(name, |byte| Some(format!("%25{byte:02x}"))).into_iter().map(|name| start.to_owned() + &name);
        let ends =
            ["%00", "%20", "%3Fx", "%23", ";a=b", "%", "%zz", "%0a%0a", "%c0%af", "%2e"].map(|end| path.clone() + end);
        let case = start.to_owned() + &name.to_ascii_uppercase();
        let scheme = format!("/h/{path}x:/y");
        for target in twice.chain(ends).chain([case, scheme, path[1..].replace('/', "\\")]) {
            assert_eq!(Route::of_request(method, &target), Route::Other, "{method} {target}");
            compared += 1;
        }
    }
    assert!(compared > 500, "{compared}");
}

#[test]
fn model_name_may_contain_an_escaped_slash() {
    for target in ["/v2/models/org%2Fm/generate", "/e1/v2/models/org%2fm/generate/"] {
        assert_eq!(Route::of_request("POST", target), Route::TritonGenerate, "{target}");
    }
    assert_eq!(Route::of_request("GET", "/v1/models/org%2Fm"), Route::Probe);
}

#[test]
fn usual_target_is_not_copied() {
    for target in ["/v1/chat/completions", "/v1/chat/completions/?x=%20//a", "http://h/v1/completions", "/", "", "*"] {
        let readings: Vec<_> = Route::readings(target).collect();
        assert!(matches!(readings[..], [Cow::Borrowed(_)]), "{readings:?}");
    }
    let readings: Vec<_> = Route::readings("/a//%62").collect();
    assert_eq!(readings, ["/a/b", "/a//%62"]);
}
