#include "netconf.h"

#include <stdio.h>

/* The error and the answer to VERSION quote it; versions are short. */
enum { MAX_VERSION_BYTES = 64 };

enum { DEFAULT_TIMEOUT_MS = 60 * 1000, MAX_TIMEOUT_MS = 3600 * 1000 };

void netconf_init(struct netconf *conf)
{
    *conf = (struct netconf){
        .timeout_ms = DEFAULT_TIMEOUT_MS,
        .run_dir = "/run/k8s-rdma",
    };
}

#define EMPTY_STRING 2 /* its quotes */

/* libcni takes a configuration without cniVersion for the first version, and writes an empty one for it. */
static bool read_cni_version(struct netconf *conf, struct span value, struct cni_error *error)
{
    static const unsigned char first[] = "\"0.1.0\"";
    conf->cni_version = (struct span){first, first + sizeof first - 1};
    if (!value.at || (json_is(value, '"') && value.end - value.at == EMPTY_STRING))
        return true;
    if (!json_is(value, '"') || value.end - value.at > MAX_VERSION_BYTES)
        return fail(error, CNI_INVALID_NETWORK_CONFIG, "network configuration: cniVersion is no version string");
    conf->cni_version = value;
    return true;
}

static bool read_run_dir(struct netconf *conf, struct span value, struct cni_error *error)
{
    if (!value.at)
        return true;
    if (json_copy(value, conf->run_dir, sizeof conf->run_dir) && conf->run_dir[0] == '/')
        return true;
    return fail(error, CNI_INVALID_NETWORK_CONFIG,
                "network configuration: runDir must be an absolute path of at most %d bytes", RUN_DIR_SIZE - 1);
}

static bool read_timeout(struct netconf *conf, struct span value, struct cni_error *error)
{
    if (!value.at)
        return true;
    uint32_t number = 0;
    while (value.at < value.end && *value.at >= '0' && *value.at <= '9' && number <= MAX_TIMEOUT_MS)
        number = number * 10 + (*value.at++ - '0');
    if (value.at < value.end || number == 0 || number > MAX_TIMEOUT_MS)
        return fail(error, CNI_INVALID_NETWORK_CONFIG,
                    "network configuration: timeoutMs must be a whole number from 1 to %d", MAX_TIMEOUT_MS);
    conf->timeout_ms = number;
    return true;
}

/* Whether a string is nothing but an empty list, or nothing at all, and white space. */
static bool asks_for_none(struct span value)
{
    static const char list[] = "[]";
    if (!json_is(value, '"'))
        return false;
    struct span body = json_body(value);
    size_t seen = 0;
    for (uint32_t code; (code = json_next_char(&body)) != JSON_END;) {
        if (code == ' ' || code == '\t' || code == '\n' || code == '\r')
            continue;
        if (seen == sizeof list - 1 || code != (unsigned char)list[seen])
            return false;
        seen++;
    }
    return seen != 1;
}

/* Of our annotations these ask; others say what the pod has (wire/annotation.py, agent/cni/pod_request.py). */
static bool asks(struct span key, struct span value)
{
    bool requests = json_equals(key, "rdma_interfaces_required") || json_equals(key, "k8s-rdma.io/interfaces");
    return json_equals(key, "k8s-rdma.io/placement") || (requests && !asks_for_none(value));
}

/* Go writes a map that was never made as null: a sandbox without annotations. */
static enum wish read_wish(struct span text)
{
    struct span config = json_member(text, "runtimeConfig");
    struct span annotations = json_member(config, "io.kubernetes.cri.pod-annotations");
    if (json_is(annotations, 'n'))
        return WISH_NOTHING;
    if (!json_is(annotations, '{'))
        return WISH_UNKNOWN;
    struct span key, value;
    while (json_next_member(&annotations, &key, &value))
        if (asks(key, value))
            return WISH_SOMETHING;
    return WISH_NOTHING;
}

/* An empty object is as good as none (wire/cni_request.py, plugin_type). */
static bool names_delegate(struct span value)
{
    struct span key, member;
    bool empty = json_is(value, '{') && !json_next_member(&value, &key, &member);
    return value.at && !json_is(value, 'n') && !empty;
}

bool netconf_read(struct netconf *conf, struct span text, struct cni_error *error)
{
    const unsigned char *start = text.at;
    if (!json_document(&text))
        return fail(error, CNI_DECODING_FAILURE,
                    "network configuration: no JSON document (RFC 8259, UTF-8, at most %d deep) from byte %td on",
                    JSON_MAX_DEPTH, text.at - start);
    if (!json_is(text, '{'))
        return fail(error, CNI_DECODING_FAILURE, "network configuration: no JSON object");
    struct span prev_result = json_member(text, "prevResult");
    if (json_is(prev_result, '{'))
        conf->prev_result = prev_result;
    conf->delegate = names_delegate(json_member(text, "delegate"));
    conf->only_plugin = conf->delegate || json_is(json_member(text, "emptyResult"), 't');
    conf->exclusive_devices = json_is(json_member(text, "exclusiveDevices"), 't');
    conf->wish = read_wish(text);
    return read_cni_version(conf, json_member(text, "cniVersion"), error)
        && read_run_dir(conf, json_member(text, "runDir"), error)
        && read_timeout(conf, json_member(text, "timeoutMs"), error);
}
