package io.duewheel;

import java.util.List;

/** Leased messages. {@code heldBack} says why there are none although some are ready: {@code leases} or {@code rate}. */
public record Grants(List<Message> messages, String heldBack) {}
