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
        "/v1/responses/resp_1/cancel",
        "/v1/chat/completions/batch",
        "/v1/chat/completions/render",
        "/v1/completions/render",
        "/inference/v1/abort_requests",
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
fn only_get_and_head_server_queries_are_probes() {
    for path in ["/", "/health", "/engine1/metrics", "/v1/models", "/v1/models/m", "/v2/models/m/ready", "/slots"] {
        for method in ["GET", "HEAD"] {
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
