/**
 * NestJS: a strategy for consumers, and a client for producers.
 *
 * ```ts
 * const app = await NestFactory.createMicroservice(AppModule, { strategy: new DuewheelServer({ url, concurrency: 10 }) });
 *
 * @EventPattern("close-review") // the queue
 * close(@Payload() order: Order, @Ctx() context: DuewheelContext) {}
 *
 * client.emit("close-review", new DuewheelRecord(order, { delay: "48h", key: "order-42" }));
 * ```
 *
 * Events only: a delayed message has nobody who waits for a reply.
 */
import { BaseRpcContext, ClientProxy, Server, type CustomTransportStrategy, type ReadPacket } from "@nestjs/microservices";
import { lastValueFrom } from "rxjs";
import { Client } from "./client.js";
import type { Message } from "./message.js";
import type { ClientOptions } from "./transport.js";
import type { Duration, NewMessage } from "./types.js";
import { Verdict, Worker, dead, notYet, type WorkerOptions } from "./worker.js";

/** The server of the messages, or a client of it. */
export type DuewheelOptions = ClientOptions & { client?: Client };

/** What a handler gets besides the payload. */
export class DuewheelContext extends BaseRpcContext<[Message, AbortSignal]> {
  /** @internal */
  verdict: Verdict | undefined;

  /** The message: key, attempt, headers, due time. */
  get message(): Message {
    return this.args[0];
  }

  /** Aborted when the lease is lost, or when a stop has waited long enough. */
  get signal(): AbortSignal {
    return this.args[1];
  }

  /** The message comes again after this time, however the handler ends; the delivery does not count. */
  notYet(delay: Duration | { delayMs: number }, reason?: string): void {
    this.verdict = notYet(delay, reason);
  }

  /** The message is dead, however the handler ends. (Nest's filters hide what a handler throws, so throwing says less.) */
  dead(reason: string): void {
    this.verdict = dead(reason);
  }
}

/** Leases the messages of each queue that an `@EventPattern` names. A handler that throws is a failed attempt. */
export class DuewheelServer extends Server<Record<string, never>> implements CustomTransportStrategy {
  override readonly transportId = Symbol.for("duewheel");
  /** The outcome of a handler settles its message. */
  override readonly propagatesEventHandlerErrors = true;
  readonly #options: DuewheelOptions & WorkerOptions;
  #worker: Worker | undefined;

  constructor(options: DuewheelOptions & WorkerOptions = {}) {
    super();
    this.#options = options;
  }

  listen(callback: (error?: unknown) => void): void {
    const replies = [...this.messageHandlers].filter(([, handler]) => !handler.isEventHandler).map(([pattern]) => pattern);
    if (replies.length > 0) {
      return callback(new Error(`@MessagePattern(${replies.join(", ")}): messages have no reply here; use @EventPattern`));
    }
    const queues = [...this.messageHandlers.keys()];
    if (queues.length === 0) return callback();
    const onError: WorkerOptions["onError"] = (error, message) =>
      this.logger.warn(message ? `message ${message.id} of ${message.queue}: ${error.message}` : error.message);
    // Nest's own shutdown hooks call close(): the process's signals are theirs.
    const worker = new Worker(clientOf(this.#options), queues, (message, { signal }) => this.#handle(message, signal), {
      signals: [],
      onError,
      ...this.#options,
    });
    this.#worker = worker;
    worker.run().catch((error: unknown) => this.logger.error(error));
    callback();
  }

  async close(): Promise<void> {
    await this.#worker?.stop(this.#options.drainMs === undefined ? {} : { drainMs: this.#options.drainMs });
  }

  override on(event: string): never {
    throw new Error(`there is no event ${event}: give onError in the options`);
  }

  override unwrap<T>(): T {
    return this.#worker as T;
  }

  async #handle(message: Message, signal: AbortSignal): Promise<void | Verdict> {
    const handler = this.getHandlerByPattern(message.queue);
    if (!handler) throw new Error(`no handler for ${message.queue}`);
    const context = new DuewheelContext([message, signal]);
    try {
      const result: unknown = await handler(payload(message), context);
      await lastValueFrom(this.transformToObservable(result), { defaultValue: undefined });
    } catch (error) {
      if (context.verdict === undefined) throw reasoned(error);
    }
    return context.verdict;
  }
}

/** Data with the options of its message. */
export class DuewheelRecord<T = unknown> {
  constructor(
    readonly data: T,
    readonly options: Omit<NewMessage, "body" | "json"> = {},
  ) {}
}

/** Enqueues what is emitted: `emit(queue, data)` is due at once, a {@link DuewheelRecord} says more. */
export class DuewheelClient extends ClientProxy<Record<never, never>> {
  readonly #client: Client;

  constructor(options: DuewheelOptions = {}) {
    super();
    this.#client = clientOf(options);
  }

  async connect(): Promise<Client> {
    return this.#client;
  }

  close(): void {}

  override unwrap<T>(): T {
    return this.#client as T;
  }

  protected async dispatchEvent<T>(packet: ReadPacket): Promise<T> {
    const { data, options } = packet.data instanceof DuewheelRecord ? packet.data : new DuewheelRecord(packet.data as unknown);
    const due = options.delay === undefined && options.delayMs === undefined && options.dueAt === undefined ? { delayMs: 0 } : {};
    return (await this.#client.enqueue(this.normalizePattern(packet.pattern), { json: data, ...due, ...options })) as T;
  }

  protected publish(packet: ReadPacket): () => void {
    throw new Error(`send(${this.normalizePattern(packet.pattern)}): messages have no reply here; use emit`);
  }
}

function clientOf(options: DuewheelOptions): Client {
  return options.client ?? new Client(options);
}

/** JSON if its type says so, else text or bytes. */
function payload(message: Message): unknown {
  if (/^application\/(.+\+)?json\b/i.test(message.headers["content-type"] ?? "")) return message.json();
  return message.isText ? message.text : message.bytes;
}

/** Nest's filters throw plain objects. */
function reasoned(error: unknown): unknown {
  if (error instanceof Error || typeof error !== "object" || error === null) return error;
  const { message } = error as { message?: unknown };
  return new Error(typeof message === "string" ? message : JSON.stringify(error), { cause: error });
}
