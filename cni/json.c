#include "json.h"

#include <stdio.h>
#include <string.h>

static bool take(struct span *rest, unsigned char wanted)
{
    if (rest->at == rest->end || *rest->at != wanted)
        return false;
    rest->at++;
    return true;
}

static bool is_space(uint32_t c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

static void skip_space(struct span *rest)
{
    while (rest->at < rest->end && is_space(*rest->at))
        rest->at++;
}

static bool skip_literal(struct span *rest, const char *literal)
{
    for (; *literal; literal++)
        if (!take(rest, (unsigned char)*literal))
            return false;
    return true;
}

static bool skip_digits(struct span *rest)
{
    const unsigned char *start = rest->at;
    while (rest->at < rest->end && *rest->at >= '0' && *rest->at <= '9')
        rest->at++;
    return rest->at > start;
}

static bool skip_number(struct span *rest)
{
    take(rest, '-');
    if (!take(rest, '0') && !skip_digits(rest))
        return false;
    if (take(rest, '.') && !skip_digits(rest))
        return false;
    if (!take(rest, 'e') && !take(rest, 'E'))
        return true;
    if (!take(rest, '+'))
        take(rest, '-');
    return skip_digits(rest);
}

/* One UTF-8 sequence (RFC 3629, section 4): no overlong form, no surrogate, nothing above U+10FFFF.
 * `rest` holds one byte at least. */
static uint32_t take_utf8(struct span *rest)
{
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    unsigned char lead = *rest->at++;
    if (lead < 0x80)
        return lead;
    if (lead < 0xC2 || lead > 0xF4)
        return JSON_INVALID;
    int length = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
    uint32_t code = lead & (0x7Fu >> length);
    for (int i = 1; i < length; i++) {
        if (rest->at == rest->end || (*rest->at & 0xC0) != 0x80)
            return JSON_INVALID;
        code = code << 6 | (*rest->at++ & 0x3Fu);
    }
    bool surrogate = code >= 0xD800 && code <= 0xDFFF;
    return code < least[length] || surrogate || code > 0x10FFFF ? JSON_INVALID : code;
}

static int hex_digit(unsigned char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    unsigned char lower = c | 0x20;
    return lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : -1;
}

static bool take_hex4(struct span *rest, uint32_t *unit)
{
    *unit = 0;
    for (int i = 0; i < 4; i++) {
        int digit = rest->at < rest->end ? hex_digit(*rest->at) : -1;
        if (digit < 0)
            return false;
        *unit = *unit << 4 | (uint32_t)digit;
        rest->at++;
    }
    return true;
}

/* After `\u`: a UTF-16 unit, or two that make a pair (RFC 8259, section 7). */
static uint32_t take_unicode_escape(struct span *rest)
{
    uint32_t high, low;
    if (!take_hex4(rest, &high))
        return JSON_INVALID;
    struct span pair = *rest;
    bool paired = high >= 0xD800 && high <= 0xDBFF && take(&pair, '\\') && take(&pair, 'u')
        && take_hex4(&pair, &low) && low >= 0xDC00 && low <= 0xDFFF;
    if (!paired)
        return high;
    *rest = pair;
    return 0x10000 + ((high & 0x3FF) << 10 | (low & 0x3FF));
}

static uint32_t take_escape(struct span *rest)
{
    static const char letters[] = "\"\\/bfnrt", meanings[] = "\"\\/\b\f\n\r\t";
    if (take(rest, 'u'))
        return take_unicode_escape(rest);
    for (size_t i = 0; letters[i]; i++)
        if (take(rest, (unsigned char)letters[i]))
            return (unsigned char)meanings[i];
    return JSON_INVALID;
}

uint32_t json_next_char(struct span *body)
{
    if (body->at == body->end)
        return JSON_END;
    if (*body->at < 0x20)
        return JSON_INVALID;
    return take(body, '\\') ? take_escape(body) : take_utf8(body);
}

static bool skip_string(struct span *rest)
{
    if (!take(rest, '"'))
        return false;
    while (!take(rest, '"'))
        if (json_next_char(rest) >= JSON_INVALID)
            return false;
    return true;
}

static bool skip_value(struct span *rest, int depth);

/* What stands between two brackets; `keyed` in an object. */
static bool skip_list(struct span *rest, unsigned char close, bool keyed, int depth)
{
    skip_space(rest);
    if (take(rest, close))
        return true;
    do {
        skip_space(rest);
        if (keyed && !skip_string(rest))
            return false;
        skip_space(rest);
        if (keyed && !take(rest, ':'))
            return false;
        if (!skip_value(rest, depth))
            return false;
        skip_space(rest);
    } while (take(rest, ','));
    return take(rest, close);
}

static bool skip_value(struct span *rest, int depth)
{
    skip_space(rest);
    switch (rest->at < rest->end ? *rest->at : 0) {
    case '{':
        return depth < JSON_MAX_DEPTH && take(rest, '{') && skip_list(rest, '}', true, depth + 1);
    case '[':
        return depth < JSON_MAX_DEPTH && take(rest, '[') && skip_list(rest, ']', false, depth + 1);
    case '"':
        return skip_string(rest);
    case 't':
        return skip_literal(rest, "true");
    case 'f':
        return skip_literal(rest, "false");
    case 'n':
        return skip_literal(rest, "null");
    default:
        return skip_number(rest);
    }
}

bool json_document(struct span *text)
{
    skip_space(text);
    struct span rest = *text;
    bool whole = skip_value(&rest, 0);
    const unsigned char *end = rest.at;
    if (whole)
        skip_space(&rest);
    if (!whole || rest.at < rest.end) {
        text->at = rest.at;
        return false;
    }
    text->end = end;
    return true;
}

bool json_next_member(struct span *rest, struct span *key, struct span *value)
{
    if (!take(rest, '{') && !take(rest, ','))
        return false;
    skip_space(rest);
    key->at = rest->at;
    if (!skip_string(rest))
        return false;
    key->end = rest->at;
    skip_space(rest);
    if (!take(rest, ':'))
        return false;
    skip_space(rest);
    value->at = rest->at;
    if (!skip_value(rest, 1))
        return false;
    value->end = rest->at;
    skip_space(rest);
    return true;
}

struct span json_member(struct span object, const char *name)
{
    struct span found = {NULL, NULL}, key, value;
    while (json_next_member(&object, &key, &value))
        if (json_equals(key, name))
            found = value;
    return found;
}

bool json_is(struct span value, unsigned char first)
{
    return value.at < value.end && *value.at == first;
}

struct span json_body(struct span string)
{
    return (struct span){string.at + 1, string.end - 1};
}

bool json_equals(struct span string, const char *text)
{
    struct span body = json_body(string);
    for (; *text; text++)
        if (json_next_char(&body) != (unsigned char)*text)
            return false;
    return body.at == body.end;
}

/* The UTF-8 form of a code point that is no surrogate; how many bytes. */
static size_t put_utf8(uint32_t code, char out[4])
{
    size_t length = code < 0x80 ? 1 : code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
    for (size_t i = length; i-- > 1; code >>= 6)
        out[i] = (char)(0x80 | (code & 0x3F));
    static const unsigned char lead[] = {0, 0, 0xC0, 0xE0, 0xF0};
    out[0] = (char)(lead[length] | code);
    return length;
}

bool json_copy(struct span string, char *out, size_t size)
{
    if (!json_is(string, '"'))
        return false;
    struct span body = json_body(string);
    size_t used = 0;
    for (uint32_t code; (code = json_next_char(&body)) != JSON_END;) {
        bool surrogate = code >= 0xD800 && code <= 0xDFFF;
        if (code == 0 || code == JSON_INVALID || surrogate)
            return false;
        char bytes[4];
        size_t length = put_utf8(code, bytes);
        if (used + length >= size)
            return false;
        memcpy(out + used, bytes, length);
        used += length;
    }
    out[used] = '\0';
    return true;
}

/* One character of a JSON string, escaped where RFC 8259, section 7 demands it; how many bytes. */
static size_t quote_char(struct span *rest, char out[8])
{
    const unsigned char *start = rest->at;
    uint32_t code = take_utf8(rest);
    if (code == JSON_INVALID) {
        rest->at = start + 1;
        out[0] = '?';
        return 1;
    }
    if (code < 0x20)
        return (size_t)snprintf(out, 8, "\\u%04x", (unsigned)code);
    size_t escape = code == '"' || code == '\\';
    out[0] = '\\';
    return escape + put_utf8(code, out + escape);
}

void json_quote(const char *text, char *out, size_t size)
{
    struct span rest = {(const unsigned char *)text, (const unsigned char *)text + strlen(text)};
    size_t used = 0;
    out[used++] = '"';
    while (rest.at < rest.end) {
        char bytes[8];
        size_t length = quote_char(&rest, bytes);
        if (used + length + 2 > size)
            break;
        memcpy(out + used, bytes, length);
        used += length;
    }
    out[used++] = '"';
    out[used] = '\0';
}
