package io.duewheel;

import java.util.List;

/** A part of a queue's messages. Give {@code next} for the next page; it is null on the last one. */
public record Page(List<View> messages, String next) {}
