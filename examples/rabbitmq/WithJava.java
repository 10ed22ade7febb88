// Publishes a message that is due in a second, and consumes it: WithJava.java PORT BODY
import com.rabbitmq.client.AMQP;
import com.rabbitmq.client.ConnectionFactory;
import com.rabbitmq.client.GetResponse;
import java.util.Map;

public class WithJava {
    public static void main(String[] args) throws Exception {
        String queue = "from-Java", routingKey = "Java";
        var factory = new ConnectionFactory();
        factory.setPort(Integer.parseInt(args[0]));
        try (var connection = factory.newConnection()) {
            var channel = connection.createChannel();
            channel.exchangeDeclare("delayed", "fanout", true);
            channel.queueDeclare(queue, true, false, false, null);
            channel.queueBind(queue, "delayed.due", routingKey);
            var properties = new AMQP.BasicProperties.Builder().contentType("text/plain").messageId("Java-7")
                .headers(Map.of("x-delay", 1000, "order", "7")).build();
            channel.basicPublish("delayed", routingKey, properties, args[1].getBytes("UTF-8"));
            GetResponse got;
            while ((got = channel.basicGet(queue, true)) == null) Thread.sleep(50);
            var text = new StringBuilder("{\"body\": \"" + new String(got.getBody(), "UTF-8") + "\"");
            text.append(", \"type\": \"" + got.getProps().getContentType() + "\"");
            text.append(", \"id\": \"" + got.getProps().getMessageId() + "\"");
            got.getProps().getHeaders().forEach((name, value) ->
                text.append(", \"" + name + "\": " + (value instanceof Number ? value : "\"" + value + "\"")));
            System.out.println(text.append("}"));
        }
    }
}
