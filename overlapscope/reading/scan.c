/* Reads a JSON array of trace events straight into columns.

   It takes what Kineto writes all the time, and refuses the whole array where anything in it is unusual: then the
   events are decoded in Python (`_events.py`), which knows what to make of it. So what is taken here must be valid
   JSON throughout, mean the same there, and end where the array ends. Nothing is read outside of the array, and
   nothing of it is interpreted but numbers, the phase, the category and keys without escapes: names and other texts
   are handed on as they are written, each different one once.

   The array's last byte must be its closing bracket, so that a loop over blanks or digits ends before it. */

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef const unsigned char *Text;

enum { MOST_DEPTH = 64, MOST_DIGITS = 18, EXACT_DIGITS = 15, NS_DIGITS = 3, TIME_DIGITS = 16 };
static const int64_t DOUBLES_BELOW_US = (int64_t)1 << 43; /* as in `_times.py` */
static const int64_t LARGEST_US = 4000000000000000;       /* `_times._LARGEST_US` */
static const double SMALL_US = 4294967296.0;        /* `_times._SMALL_US` */

/* -- what is asked for; filled in by `_scan.py` */

enum Shape { UNKNOWN = -1, PLAIN, CALL, OP, PASSED_OVER, INSTANT };
enum Type { INTEGER, STRING, RAW };

typedef struct {
    const char *text;
    int64_t length;
    int64_t kind;       /* of a category its Shape, of an argument its Type */
    const char *phases; /* of a category that is passed over: those that it comes in */
} Word;

typedef struct {
    const Word *categories, *arguments;
    int64_t n_categories, n_arguments, correlation; /* the place of the only argument that calls have */
    const int64_t *defaults;                        /* of the arguments */
} Wanted;

/* -- what is handed back */

typedef struct {
    unsigned char *json; /* the different texts as they are written, each behind a comma */
    int64_t bytes, room, count;
    uint64_t *hashes;
    int64_t *ends;  /* of each text in `json` */
    int32_t *slots; /* its number + 1, by hash */
    int64_t most, n_slots;
} Words;

typedef struct {
    int64_t events, rows, n_calls, n_ops, no_duration, row_room, call_room, op_room;
    int32_t *category, *place, *name;
    int64_t *start_ns, *dur_ns, *thread; /* a thread or process with a text: the least integer + the text's number */
    int64_t *calls;                      /* process, correlation */
    int64_t *ops;                        /* process, then arguments */
    Words names, texts;
} Columns;

typedef struct {
    Columns columns; /* first, so that it is what a pointer to this points to */
    Wanted wanted;
    uint64_t seed;
    Text last; /* the array's closing bracket */
    int32_t recent;
} Scanner;

/* -- memory */

static int grow(void **block, int64_t size) {
    void *larger = realloc(*block, (size_t)size);
    if (larger == NULL) return 0;
    *block = larger;
    return 1;
}

static int room_for_row(Columns *to) {
    if (to->rows < to->row_room) return 1;
    int64_t room = to->row_room ? 2 * to->row_room : 4096;
    if (!grow((void **)&to->category, room * 4) || !grow((void **)&to->place, room * 4) ||
        !grow((void **)&to->name, room * 4) || !grow((void **)&to->start_ns, room * 8) ||
        !grow((void **)&to->dur_ns, room * 8) || !grow((void **)&to->thread, room * 8))
        return 0;
    to->row_room = room;
    return 1;
}

static int64_t *room_for(int64_t **block, int64_t *room, int64_t used, int64_t width) {
    if (used == *room) {
        int64_t more = *room ? 2 * *room : 1024;
        if (!grow((void **)block, more * width * 8)) return NULL;
        *room = more;
    }
    return *block + used * width;
}

/* -- texts, numbered in the order in which they are met */

static uint64_t hash_of(Text text, int64_t length, uint64_t seed) {
    uint64_t hash = seed ^ (uint64_t)length, word;
    for (; length > 0; text += 8, length -= 8) {
        word = 0;
        memcpy(&word, text, length < 8 ? (size_t)length : 8);
        hash = (hash ^ word) * UINT64_C(0x9E3779B97F4A7C15);
        hash ^= hash >> 29;
    }
    return hash ^ hash >> 32;
}

static int more_slots(Words *words) {
    int64_t n_slots = words->n_slots ? 2 * words->n_slots : 1024;
    if (!grow((void **)&words->slots, n_slots * 4) || !grow((void **)&words->hashes, n_slots / 2 * 8) ||
        !grow((void **)&words->ends, n_slots / 2 * 8))
        return 0;
    words->n_slots = n_slots, words->most = n_slots / 2;
    memset(words->slots, 0, (size_t)n_slots * 4);
    for (int64_t number = 0; number < words->count; number++) {
        int64_t slot = (int64_t)(words->hashes[number] & (uint64_t)(n_slots - 1));
        while (words->slots[slot]) slot = (slot + 1) & (n_slots - 1);
        words->slots[slot] = (int32_t)number + 1;
    }
    return 1;
}

/* The text's number, or -1 where memory is short. */
static int64_t number_of(Words *words, Text text, int64_t length, uint64_t seed) {
    if (words->count == words->most && !more_slots(words)) return -1;
    uint64_t hash = hash_of(text, length, seed);
    int64_t mask = words->n_slots - 1, slot = (int64_t)(hash & (uint64_t)mask);
    for (int32_t number; (number = words->slots[slot]) != 0; slot = (slot + 1) & mask) {
        if (words->hashes[number - 1] != hash) continue;
        int64_t begin = (number > 1 ? words->ends[number - 2] : 0) + 1;
        if (words->ends[number - 1] - begin == length && !memcmp(words->json + begin, text, (size_t)length))
            return number - 1;
    }
    if (words->bytes + length + 1 > words->room) {
        int64_t room = 2 * (words->bytes + length + 1);
        if (!grow((void **)&words->json, room)) return -1;
        words->room = room;
    }
    words->json[words->bytes] = ',';
    memcpy(words->json + words->bytes + 1, text, (size_t)length);
    words->bytes += length + 1;
    words->hashes[words->count] = hash, words->ends[words->count] = words->bytes;
    words->slots[slot] = (int32_t)++words->count;
    return words->count - 1;
}

static void forget(Words *words) {
    words->bytes = words->count = 0;
    if (words->n_slots) memset(words->slots, 0, (size_t)words->n_slots * 4);
}

/* -- JSON: each function returns where what it reads ends, or NULL where it refuses that */

static Text blank(Text at) {
    while (*at == ' ' || *at == '\n' || *at == '\r' || *at == '\t') at++;
    return at;
}

static int is_digit(unsigned char byte) { return (unsigned)(byte - '0') < 10; }

static int is_hex(unsigned char byte) { return is_digit(byte) || (unsigned)((byte | 32) - 'a') < 6; }

/* Where the first quote, backslash or byte below 32 is from `at` on; `last` where none is. */
static Text special(Text at, Text last) {
    const uint64_t ones = UINT64_C(0x0101010101010101), tops = ones << 7;
    for (uint64_t word; last - at >= 8; at += 8) {
        memcpy(&word, at, 8);
        uint64_t quote = word ^ ones * '"', slash = word ^ ones * '\\';
        /* The lowest bit that is set is of such a byte; those above may have been borrowed from. */
        uint64_t found = (((word - ones * 32) & ~word) | ((quote - ones) & ~quote) | ((slash - ones) & ~slash)) & tops;
        if (found) {
#if defined __GNUC__ && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
            return at + __builtin_ctzll(found) / 8;
#else
            break;
#endif
        }
    }
    while (at < last && *at >= 32 && *at != '"' && *at != '\\') at++;
    return at;
}

/* A string, from its opening quote. Halves of surrogate pairs are refused, and so are the pairs. */
static Text string(Text at, Text last) {
    for (at = special(at + 1, last); at < last && *at != '"'; at = special(at + 1, last)) {
        if (*at < 32 || ++at == last) return NULL;
        if (*at == 'u') {
            if (last - at < 5 || !is_hex(at[1]) || !is_hex(at[2]) || !is_hex(at[3]) || !is_hex(at[4])) return NULL;
            if ((at[1] | 32) == 'd' && at[2] >= '8') return NULL;
            at += 4;
        } else if (*at == 0 || strchr("\"\\/bfnrt", *at) == NULL) {
            return NULL;
        }
    }
    return at < last ? at + 1 : NULL;
}

static Text digits(Text at) {
    if (!is_digit(*at) || (*at == '0' && is_digit(at[1]))) return NULL;
    while (is_digit(*at)) at++;
    return at;
}

static Text number(Text at) {
    at = digits(at + (*at == '-'));
    if (at == NULL) return NULL;
    if (*at == '.') {
        if (!is_digit(*++at)) return NULL;
        while (is_digit(*at)) at++;
    }
    if (*at == 'e' || *at == 'E') {
        at++;
        at += *at == '+' || *at == '-';
        if (!is_digit(*at)) return NULL;
        while (is_digit(*at)) at++;
    }
    return at;
}

static Text literal(Text at, Text last, const char *word) {
    int64_t length = (int64_t)strlen(word);
    return last - at >= length && !memcmp(at, word, (size_t)length) ? at + length : NULL;
}

static Text value(Text at, Text last, int depth);

/* The values of an array or object, from behind its opening bracket. */
static Text values(Text at, Text last, int depth, unsigned char closing) {
    at = blank(at);
    while (*at != closing) {
        if (closing == '}') {
            if (*at != '"' || (at = string(at, last)) == NULL || *(at = blank(at)) != ':') return NULL;
            at = blank(at + 1);
        }
        if ((at = value(at, last, depth)) == NULL) return NULL;
        at = blank(at);
        if (*at == closing) break;
        if (*at != ',') return NULL;
        at = blank(at + 1);
        if (*at == closing) return NULL;
    }
    return at < last ? at + 1 : NULL;
}

static Text value(Text at, Text last, int depth) {
    switch (*at) {
    case '"':
        return string(at, last);
    case '{':
        return depth < MOST_DEPTH ? values(at + 1, last, depth + 1, '}') : NULL;
    case '[':
        return depth < MOST_DEPTH ? values(at + 1, last, depth + 1, ']') : NULL;
    case 't':
        return literal(at, last, "true");
    case 'f':
        return literal(at, last, "false");
    case 'n':
        return literal(at, last, "null");
    default:
        return number(at);
    }
}

/* -- values that are read */

static Text integer(Text at, int64_t *found) {
    int negative = *at == '-';
    Text begin = at + negative, end = digits(begin);
    if (end == NULL || end - begin > MOST_DIGITS || *end == '.' || (*end | 32) == 'e') return NULL;
    int64_t sum = 0;
    for (at = begin; at < end; at++) sum = 10 * sum + (*at - '0');
    *found = negative ? -sum : sum;
    return end;
}

/* Microseconds below a limit as nanoseconds, as `_times.number_to_ns` makes them. */
static Text time_ns(Text at, int64_t below, int64_t *found) {
    static const double TENS[] = {1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15};
    int negative = *at == '-';
    Text begin = at + negative, end = digits(begin);
    if (end == NULL || end - begin > TIME_DIGITS) return NULL;
    int64_t sum = 0, places = 0;
    for (at = begin; at < end; at++) sum = 10 * sum + (*at - '0');
    if (sum >= below) return NULL;
    int large = sum >= DOUBLES_BELOW_US;
    if (large && negative) return NULL;
    if (*end == '.') {
        if (!is_digit(*++end)) return NULL;
        int64_t whole = end - 1 - begin;
        for (; is_digit(*end); end++, places++) {
            if (places > NS_DIGITS && whole + places >= EXACT_DIGITS) return NULL;
            if (places == NS_DIGITS && large) return NULL;
            sum = 10 * sum + (*end - '0');
        }
        if (places > NS_DIGITS && whole + places > EXACT_DIGITS) return NULL;
    }
    if ((*end | 32) == 'e') return NULL;
    if (places <= NS_DIGITS) {
        while (places++ < NS_DIGITS) sum *= 10;
        *found = negative ? -sum : sum;
        return end;
    }
    /* Both are whole numbers that doubles hold, so the quotient is the double nearest to the text. */
    double us = (double)sum / TENS[places];
    if (negative || us >= SMALL_US) return NULL;
    *found = (int64_t)rint(us * 1000);
    return end;
}

/* A process or thread: a number, or a text. */
static Text identity(Scanner *scanner, Text at, int64_t *found) {
    if (*at != '"') return integer(at, found);
    Text end = string(at, scanner->last);
    if (end == NULL) return NULL;
    int64_t text = number_of(&scanner->columns.texts, at, end - at, scanner->seed);
    *found = INT64_MIN + text;
    return text < 0 ? NULL : end;
}

/* -- events */

static int is(Text text, int64_t length, const char *word) {
    return length == (int64_t)strlen(word) && !memcmp(text, word, (size_t)length);
}

static int is_ascii(Text at, Text end) {
    while (at < end && *at < 128) at++;
    return at == end;
}

static int spells(const Word *word, Text text, int64_t length) {
    return word->length == length && !memcmp(word->text, text, (size_t)length);
}

/* The key at `at` between its quotes, and where its value begins. A key with an escape is refused. */
static Text key(Text at, Text last, Text *text, int64_t *length) {
    if (*at != '"') return NULL;
    Text end = special(*text = at + 1, last);
    if (*end != '"') return NULL;
    *length = end - *text;
    end = blank(end + 1);
    return *end == ':' ? blank(end + 1) : NULL;
}

/* What follows a value in an object: the next key, or the closing bracket; anything else is refused. */
static Text next(Text at) {
    at = blank(at);
    if (*at == '}') return at;
    if (*at != ',') return NULL;
    at = blank(at + 1);
    return *at == '"' ? at : NULL;
}

static Text arguments(Scanner *scanner, Text at, int64_t shape, int64_t *found) {
    const Wanted *wanted = &scanner->wanted;
    uint64_t seen = 0;
    if (*at != '{') return literal(at, scanner->last, "null");
    at = blank(at + 1);
    while (*at != '}') {
        Text text;
        int64_t length, place = shape == CALL ? wanted->correlation : 0;
        if ((at = key(at, scanner->last, &text, &length)) == NULL) return NULL;
        int64_t end = shape == CALL ? place + 1 : wanted->n_arguments;
        for (; place < end; place++) {
            if (spells(wanted->arguments + place, text, length)) break;
        }
        if (place == end) {
            at = value(at, scanner->last, 0);
        } else {
            if (seen >> place & 1) return NULL;
            seen |= UINT64_C(1) << place;
            int64_t *to = shape == CALL ? found : found + place;
            int64_t type = wanted->arguments[place].kind;
            if (type == INTEGER) {
                at = integer(at, to);
            } else {
                Text begin = at;
                if (type == STRING && *at != '"') return NULL;
                at = value(at, scanner->last, 0);
                if (at == NULL) return NULL;
                if ((*to = number_of(&scanner->columns.texts, begin, at - begin, scanner->seed)) < 0) return NULL;
            }
        }
        if (at == NULL || (at = next(at)) == NULL) return NULL;
    }
    return at + 1;
}

static int32_t category_of(Scanner *scanner, Text text, int64_t length) {
    const Word *categories = scanner->wanted.categories;
    /* Mostly it is that of the event before. */
    if (spells(categories + scanner->recent, text, length)) return scanner->recent;
    for (int32_t place = 0; place < scanner->wanted.n_categories; place++) {
        if (spells(categories + place, text, length)) return scanner->recent = place;
    }
    return -1;
}

/* Room for what the next call or op says, which is nothing so far. */
static int64_t *room_to_say(Scanner *scanner, int64_t shape) {
    Columns *to = &scanner->columns;
    int64_t n_arguments = scanner->wanted.n_arguments;
    if (shape == CALL) {
        int64_t *call = room_for(&to->calls, &to->call_room, to->n_calls, 2);
        if (call != NULL) call[0] = call[1] = -1;
        return call;
    }
    int64_t *op = room_for(&to->ops, &to->op_room, to->n_ops, n_arguments + 1);
    if (op != NULL) *op = -1, memcpy(op + 1, scanner->wanted.defaults, (size_t)n_arguments * 8);
    return op;
}

static Text event(Scanner *scanner, Text at) {
    enum { PH = 1, CAT = 2, NAME = 4, PID = 8, TID = 16, TS = 32, DUR = 64, ARGS = 128 };
    /* Which fields are read of each shape, UNKNOWN first; the others need only be valid. */
    enum { ALWAYS = PH | CAT, OF_ROWS = ALWAYS | NAME | TID | TS | DUR };
    static const int READ[] = {ALWAYS, OF_ROWS, OF_ROWS | ARGS | PID, OF_ROWS | ARGS | PID, ALWAYS, ALWAYS | NAME | TS};
    Columns *columns = &scanner->columns;
    Text last = scanner->last, name = NULL, text;
    int64_t length, unread, name_length = 0, tid = -1, start = INT64_MIN, dur = 0, shape = UNKNOWN;
    int64_t *said = NULL;
    unsigned char phase = 0;
    int32_t category = -1;
    int seen = 0;
    if (*at != '{' || !room_for_row(columns)) return NULL;
    at = blank(at + 1);
    Text first = at;
    while (*at != '}') {
        int field = 0;
        if ((at = key(at, last, &text, &length)) == NULL) return NULL;
        switch (length) {
        case 2:
            field = is(text, length, "ph") ? PH : is(text, length, "ts") ? TS : 0;
            break;
        case 3:
            field = is(text, length, "cat") ? CAT : is(text, length, "dur") ? DUR : 0;
            if (!field) field = is(text, length, "pid") ? PID : is(text, length, "tid") ? TID : 0;
            break;
        case 4:
            field = is(text, length, "name") ? NAME : is(text, length, "args") ? ARGS : 0;
        }
        if (seen & field) return NULL;
        seen |= field;
        switch (field & READ[shape + 1]) {
        case PH:
            if (at[0] != '"' || last - at < 3 || at[2] != '"' || at[1] == '\\' || at[1] < 32) return NULL;
            phase = at[1], at += 3;
            break;
        case CAT:
            if (*at != '"') return NULL;
            text = at + 1;
            if ((at = string(at, last)) == NULL) return NULL;
            if (category >= 0) break;
            if ((category = category_of(scanner, text, at - text - 1)) < 0) return NULL;
            shape = scanner->wanted.categories[category].kind;
            if ((shape == CALL || shape == OP) && (said = room_to_say(scanner, shape)) == NULL) return NULL;
            /* Which of the other values are read depends on it, so those before it are gone through once more. */
            if (seen & ~ALWAYS && shape != PASSED_OVER) {
                at = first, seen = 0;
                continue;
            }
            break;
        case NAME:
            if (*at != '"') return NULL;
            name = at;
            if ((at = string(at, last)) == NULL) return NULL;
            name_length = at - name;
            break;
        case PID:
            at = identity(scanner, at, said);
            break;
        case TID:
            at = identity(scanner, at, &tid);
            break;
        case TS:
            at = time_ns(at, LARGEST_US, &start);
            break;
        case DUR:
            at = time_ns(at, DOUBLES_BELOW_US, &dur);
            break;
        case ARGS:
            at = arguments(scanner, at, shape, said + 1);
            break;
        default:
            text = at;
            at = value(at, last, 0);
            /* Python decodes the process too, so all but whole numbers and plain texts are left to it. */
            if (field == PID && at != NULL && *text == '"' && !is_ascii(text, at)) return NULL;
            if (field == PID && at != NULL && *text != '"' && integer(text, &unread) != at) return NULL;
        }
        if (at == NULL || (at = next(at)) == NULL) return NULL;
        if (*at == '}' && category < 0 && phase == 'i') {
            /* The bounds of the recording have no category. */
            if ((category = category_of(scanner, at, 0)) < 0) return NULL;
            shape = scanner->wanted.categories[category].kind;
            at = first, seen = 0;
        }
    }
    columns->events++;
    /* Names of processes and threads have no category. */
    if (category < 0) return phase == 'M' ? at + 1 : NULL;
    if (shape == PASSED_OVER) {
        return phase && strchr(scanner->wanted.categories[category].phases, phase) != NULL ? at + 1 : NULL;
    }
    if (phase != (shape == INSTANT ? 'i' : 'X')) return NULL;
    columns->n_calls += shape == CALL, columns->n_ops += shape == OP;
    Words *names = shape == INSTANT ? &columns->texts : &columns->names;
    int64_t number = name == NULL ? number_of(names, (Text) "\"\"", 2, scanner->seed)
                                  : number_of(names, name, name_length, scanner->seed);
    if (number < 0) return NULL;
    columns->no_duration += shape != INSTANT && !(seen & DUR);
    int64_t row = columns->rows++;
    columns->category[row] = category;
    columns->place[row] = (int32_t)(columns->events - 1);
    columns->name[row] = (int32_t)number;
    columns->start_ns[row] = start, columns->dur_ns[row] = dur, columns->thread[row] = tid;
    return at + 1;
}

/* -- what Python calls */

Scanner *overlapscope_scanner(const Wanted *wanted, uint64_t seed) {
    Scanner *scanner = calloc(1, sizeof *scanner);
    if (scanner != NULL) scanner->wanted = *wanted, scanner->seed = seed;
    return scanner;
}

void overlapscope_free(Scanner *scanner) {
    Columns *held = &scanner->columns;
    void *blocks[] = {held->category,     held->place,       held->name,         held->start_ns,    held->dur_ns,
                      held->thread,       held->calls,       held->ops,          held->names.json,  held->names.hashes,
                      held->names.ends,   held->names.slots, held->texts.json,   held->texts.hashes, held->texts.ends,
                      held->texts.slots};
    for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++) free(blocks[i]);
    free(scanner);
}

/* Whether all of the array was taken; the columns stay until the next call. */
int overlapscope_scan(Scanner *scanner, Text array, int64_t length) {
    Columns *columns = &scanner->columns;
    columns->events = columns->rows = columns->n_calls = columns->n_ops = columns->no_duration = 0;
    forget(&columns->names), forget(&columns->texts);
    if (length < 2 || length > INT32_MAX || array[0] != '[' || array[length - 1] != ']') return 0;
    scanner->last = array + length - 1;
    Text at = blank(array + 1);
    while (at != scanner->last) {
        if ((at = event(scanner, at)) == NULL) return 0;
        at = blank(at);
        if (at == scanner->last) return 1;
        if (*at != ',') return 0;
        at = blank(at + 1);
        if (at == scanner->last) return 0;
    }
    return 1;
}
