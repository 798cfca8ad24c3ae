//! The reference page: the document for people, in a browser without any connection to elsewhere.
//!
//! Its files are in the program. The page may load nothing but them and ask nobody but this server.

use std::sync::{Arc, LazyLock};

use axum::http::{HeaderName, header};
use axum::response::{IntoResponse, Redirect, Response};
use utoipa_swagger_ui::Config;

use crate::api::{PathParams, Problem};

/// What the page needs. There is more in the package, and none of it is served.
const FILES: [&str; 8] = [
    "index.html",
    "index.css",
    "swagger-ui.css",
    "swagger-ui-bundle.js",
    "swagger-ui-standalone-preset.js",
    "swagger-initializer.js",
    "favicon-16x16.png",
    "favicon-32x32.png",
];

/// Styles are set by the page on its elements; images are in its style sheet.
const POLICY: &str = "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; \
    object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// Without the validator, which is somebody else's server.
static CONFIG: LazyLock<Arc<Config<'static>>> =
    LazyLock::new(|| Arc::new(Config::from("/v1/openapi.json").validator_url("none").deep_linking(true)));

/// The page is a folder for the browser, so that its files are in it.
pub(super) async fn to_folder() -> Redirect {
    Redirect::permanent("/v1/docs/")
}

pub(super) async fn index() -> Result<Response, Problem> {
    serve("index.html")
}

pub(super) async fn file(PathParams(file): PathParams<String>) -> Result<Response, Problem> {
    serve(&file)
}

fn serve(file: &str) -> Result<Response, Problem> {
    let missing = || Problem::not_found("there is no such file of the reference page");
    let served = FILES.contains(&file).then(|| utoipa_swagger_ui::serve(file, CONFIG.clone()));
    let served = served.ok_or_else(missing)?.map_err(|error| Problem::internal("reference page", &error))?;
    let served = served.ok_or_else(missing)?;
    let headers: [(HeaderName, &str); 5] = [
        (header::CONTENT_TYPE, &served.content_type),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CACHE_CONTROL, "no-cache"),
    ];
    Ok((headers, served.bytes.into_owned()).into_response())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_of_the_page_is_in_the_program() {
        for file in FILES {
            assert_eq!(serve(file).map(|response| response.status().as_u16()), Ok(200), "{file}");
        }
        for file in ["oauth2-redirect.html", "swagger-ui.js", "..", ""] {
            assert!(serve(file).is_err(), "{file}");
        }
    }
}
